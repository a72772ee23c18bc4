// The thread of a rank that makes all MPI calls. Internal to mpi_comm.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dist/bell.h"
#include "dist/board.h"
#include "dist/failure.h"
#include "dist/host_memory.h"
#include "dist/launch.h"
#include "dist/mpi_exchange.h"
#include "dist/window_queue.h"

namespace hyperparallel::dist {

// A call as its rank's thread sees it. Guarded by the progress thread's mutex.
struct MpiTicket {
  std::unique_ptr<MpiExchange> exchange;  // the progress thread's own once submitted
  std::string group_name, description;
  double timeout = 0;  // seconds, for messages
  bool has_expired = false;
  bool is_done = false;
  at::Tensor result;
  std::string error;  // why there will be no result
};

class MpiProgress {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts the thread and MPI. Throws ConfigError when MPI's ranks are not the launcher's. Ends the process, with a message,
  // when MPI has not started within the timeout.
  MpiProgress(const Launch& launch, Seconds start_timeout);
  // Ends MPI if `leave` found all ranks well; otherwise MPI is left as it is, for it would wait for the others.
  ~MpiProgress();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_size() const { return local_size_; }              // ranks of this host
  int hardware_threads() const { return hardware_threads_; }  // of this host, for this rank

  void submit(const std::shared_ptr<MpiTicket>& ticket);
  // Waits for the end of a call. Throws PeerError.
  at::Tensor wait(MpiTicket& ticket, Clock::time_point deadline);
  bool has_ended(const MpiTicket& ticket) const;
  // The first failure of the world counts.
  void fail(const Failure& failure);
  bool has_failed() const { return failed_rank_ >= 0; }
  // With what code the rank failed that failed first; kPeer where it told none. After `leave`.
  ExitCode cause() const { return cause_; }
  // "rank 2 failed: ...", where one has.
  std::string failure_text() const;

  // What this rank's host shares; nullptr where ranks share nothing.
  HostMemory* host() const { return host_.get(); }
  // Where this rank's threads sleep.
  Bell& bell() const { return *bell_; }
  Board& board() { return *board_; }
  // From now on moves what nobody waits for.
  void add(const std::shared_ptr<WindowQueue>& queue);
  // Of ranks that a call waits for: what is known of one that has ended or died, or an empty text.
  std::string gone_text(const std::vector<int>& world_ranks) const;
  // Who is missing after `timeout` seconds: those that have not called, or else those whose rows are not here.
  std::string missing_text(const std::vector<int>& absent, const std::vector<int>& unfinished, double timeout) const;
  // Tells the others that this rank is done, and waits until all are, or until the limit; after a failure only for some
  // seconds. Returns the failure of the world as others should see it; an empty message if there was none.
  Failure leave(Seconds limit);

 private:
  enum class Notice : int32_t { kFailed, kLeaving };
  struct Control {
    Notice notice;
    int32_t rank;
    int32_t code;     // ExitCode of a failure
    char text[2036];  // ends with 0
  };

  // All below run on the progress thread.
  void run(const Launch& launch, std::promise<void>& is_ready);
  void start_mpi(const Launch& launch);
  void share_memory();
  void loop();
  bool take_commands();
  bool advance_all();
  bool advance_windows();
  bool poll_control();
  void check_waits();
  void post_control_receive();
  void tell_all(Notice notice, const std::string& text);
  void fail_world(int rank, const std::string& message, const MpiTicket* culprit);
  void finish(MpiTicket& ticket);
  void stop_mpi();

  int rank_ = 0, size_ = 1, local_size_ = 1, hardware_threads_ = 1, tag_bits_ = 0;
  MPI_Comm control_ = MPI_COMM_NULL, critical_ = MPI_COMM_NULL, bulk_ = MPI_COMM_NULL;
  std::list<std::shared_ptr<MpiTicket>> active_;
  Control incoming_;
  MPI_Request control_receive_ = MPI_REQUEST_NULL;
  std::list<std::pair<Control, std::vector<MPI_Request>>> control_sends_;
  std::vector<std::shared_ptr<WindowQueue>> windows_;  // critical ones first
  std::unique_ptr<HostMemory> host_;
  Bell own_bell_;
  Bell* bell_ = &own_bell_;  // or one that other ranks can ring
  std::unique_ptr<Board> board_;
  Clock::time_point next_look_;  // for ranks that are gone

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<std::shared_ptr<MpiTicket>> queue_;
  std::vector<std::shared_ptr<WindowQueue>> new_windows_;
  std::deque<std::pair<Notice, std::string>> notices_;  // to be sent
  std::atomic<int> failed_rank_ = -1;                   // also read without the mutex
  std::string failure_;
  ExitCode cause_ = ExitCode::kPeer;        // the code of the rank that failed, where it could tell
  std::vector<Clock::time_point> left_at_;  // by world rank; zero: still here
  int left_count_ = 0;
  bool should_stop_ = false, should_finalize_ = false;
  Clock::time_point stop_at_;  // by when the last messages must be out
  std::thread thread_;
};

}  // namespace hyperparallel::dist
