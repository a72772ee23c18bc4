#include "local_ranks.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "arguments.h"
#include "base/error.h"
#include "dist/hardware_threads.h"
#include "dist/launch.h"
#include "dist/mpi_comm.h"

namespace hyperparallel {
namespace {

volatile std::sig_atomic_t launcher_process = 0, is_stopping = 0;

// NOTE [Stopping ranks]: mpirun kills its ranks when it gets SIGTERM or SIGINT, and hands SIGUSR1 on to them, which asks them to
// stop. Until they listen they ignore it, and so does mpirun itself; so it is sent again every second. A second SIGTERM or SIGINT
// ends everything at once.
void hand_on(int signal) {
  if (launcher_process > 0) kill(launcher_process, signal != SIGALRM && is_stopping ? SIGTERM : SIGUSR1);
  is_stopping = 1;
  alarm(1);
}

[[noreturn]] void become_launcher(const std::vector<std::string>& words) {
  setpgid(0, 0);  // a Ctrl-C at the terminal reaches this program alone
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  for (int signal : {SIGTERM, SIGINT, SIGALRM}) std::signal(signal, SIG_DFL);
  std::signal(SIGUSR1, SIG_IGN);
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(127);
}

}  // namespace

std::optional<int64_t> take_ranks(std::vector<std::string>& arguments) {
  const auto value = take_option(arguments, "--ranks", "a number of 1 or more");
  if (!value) return {};
  int64_t ranks = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), ranks);
  if (error != std::errc() || end != value->data() + value->size() || ranks < 1)
    throw UsageError("--ranks: expected a number of 1 or more, found `{}`", *value);
  return ranks;
}

namespace {

// Beyond this a host does nothing but switch between processes.
void check_host(int64_t ranks) {
  const auto threads = static_cast<int64_t>(dist::share_of_hardware_threads({dist::allowed_hardware_threads()}, 0));
  const int64_t most = std::max<int64_t>(64, 8 * threads);
  if (ranks > most)
    throw UsageError(
        "--ranks {}: this host has {} hardware threads and can share them among {} ranks at most (mpirun or srun spread "
        "ranks over hosts; `hyperparallel plan` needs none)",
        ranks, threads, most);
}

}  // namespace

int run_local_ranks(int64_t ranks, const std::string& command, const std::vector<std::string>& arguments) {
  check_host(ranks);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> words{"mpirun",    "--quiet", "-n",  std::to_string(ranks),  "--oversubscribe",
                                 "--bind-to", "none",    "env", "--ignore-signal=USR1", self,
                                 command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  for (int signal : {SIGTERM, SIGINT, SIGALRM}) std::signal(signal, hand_on);
  const pid_t child = fork();
  if (child < 0) throw UsageError("--ranks: no process could be made: {}", std::strerror(errno));
  if (child == 0) become_launcher(words);
  launcher_process = child;
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw UsageError("--ranks: mpirun was lost: {}", std::strerror(errno));
  }
  launcher_process = 0;
  alarm(0);
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  if (WEXITSTATUS(status) == 127)
    throw UsageError("--ranks needs Open MPI's mpirun, which cannot be started (Debian: openmpi-bin)");
  if (WEXITSTATUS(status) > 128) fmt::print(stderr, "error: a rank was ended by signal {}\n", WEXITSTATUS(status) - 128);
  return WEXITSTATUS(status);
}

RankStart take_rank_start(std::vector<std::string>& arguments) {
  const auto ranks = take_ranks(arguments);
  const dist::Launch launch = dist::read_launch();
  if (ranks && launch.world_size > 1)
    throw UsageError("--ranks {} under {}, which has started {} ranks already: leave one of them out", *ranks, launch.launcher,
                     launch.world_size);
  return {ranks.value_or(launch.world_size), ranks.value_or(1) > 1};
}

int run_on_ranks(const RankStart& start, const std::string& command, const std::vector<std::string>& arguments,
                 dist::Seconds timeout, const std::function<int(dist::World*)>& body) {
  if (start.here) return run_local_ranks(start.ranks, command, arguments);
  if (start.ranks == 1) return body(nullptr);
  int code = 0;
  const ExitCode failed =
      dist::run_mpi_ranks([&](dist::World& world) { code = body(&world); }, {.start_timeout = timeout, .end_timeout = timeout});
  return failed == ExitCode::kFinished ? code : static_cast<int>(failed);
}

}  // namespace hyperparallel
