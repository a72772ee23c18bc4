#include "plan/timeline.h"

#include "engine/schedule.h"
#include "plan/messages.h"

namespace hyperparallel::plan {
namespace {

using engine::Action;
using engine::ActionKind;

class Timeline {
 public:
  explicit Timeline(const PlanRequest& request) : r_(request), program_(*request.program), messages_(request) {}

  std::vector<TimelineEvent> run() {
    engine::ScheduleOptions options = r_.schedule;
    options.micro_batches = 1;
    for (const Action& action : engine::build_schedule(program_, options)) add(action);
    return std::move(events_);
  }

 private:
  using Kind = ActionKind;

  void add(const Action& action) {
    switch (action.kind) {
      case Kind::kForward:
      case Kind::kRecompute:
      case Kind::kBackward: {
        const engine::Segment& segment = program_.segments[action.index];
        events_.push_back({segment.name, to_string(action.kind), "", "compute", segment.region, now_, now_ + 1, 0});
        for (const engine::InnerExchange& exchange : segment.inner)
          if (const auto message = messages_.inside(exchange))
            events_.push_back(
                {exchange.name, message->kind, message->axis, "critical", segment.region, now_, now_ + 1, message->bytes});
        ++now_;
        break;
      }
      case Kind::kLaunch:
      case Kind::kLaunchTranspose:
      case Kind::kLaunchGather:
      case Kind::kLaunchReduce:
        launched_[{action.kind, action.index}] = now_;
        break;
      case Kind::kWait:
        arrive(Kind::kLaunch, program_.exchanges[action.index], messages_.forward(program_.exchanges[action.index]),
               action.index);
        break;
      case Kind::kWaitTranspose:
        arrive(Kind::kLaunchTranspose, program_.exchanges[action.index], messages_.backward(program_.exchanges[action.index]),
               action.index);
        break;
      case Kind::kWaitGather:
        arrive(Kind::kLaunchGather, ".gather", messages_.gather(program_.units[action.index]), action.index);
        break;
      case Kind::kWaitReduce:
        arrive(Kind::kLaunchReduce, ".reduce", messages_.reduce(program_.units[action.index]), action.index);
        if (action.last) {
          launched_[{Kind::kLaunchReduce, action.index}] = now_;
          arrive(Kind::kLaunchReduce, ".sum", messages_.sum(program_.units[action.index]), action.index);
        }
        break;
      case Kind::kReleaseUnit:
      case Kind::kReleaseValue:
      case Kind::kLaunchOffload:  // to and from a file of the rank itself
      case Kind::kWaitOffload:
      case Kind::kLaunchFetch:
      case Kind::kWaitFetch:
        break;
    }
  }

  void arrive(Kind launch, const engine::Exchange& exchange, const std::optional<Message>& message, int index) {
    if (message)
      events_.push_back({exchange.name, message->kind, message->axis, "critical", exchange.region, launched_.at({launch, index}),
                         now_, message->bytes});
  }
  void arrive(Kind launch, const char* suffix, const std::vector<Message>& messages, int unit) {
    for (const Message& message : messages)
      events_.push_back({program_.units[unit].name + suffix, message.kind, message.axis, "bulk", -1, launched_.at({launch, unit}),
                         now_, message.bytes});
  }

  const PlanRequest& r_;
  const engine::Program& program_;
  const Messages messages_;
  int64_t now_ = 0;
  std::map<std::pair<Kind, int>, int64_t> launched_;
  std::vector<TimelineEvent> events_;
};

}  // namespace

std::vector<TimelineEvent> make_timeline(const PlanRequest& request) {
  return Timeline(request).run();
}

}  // namespace hyperparallel::plan
