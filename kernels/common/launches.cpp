#include "kernels/common/launches.h"

#include <utility>

namespace treadle {

static thread_local bool recording = false;
static thread_local std::vector<Launch> recorded;
static thread_local const char *scope_family = "", *scope_algorithm = "", *scope_reason = "";

bool& recording_launches() { return recording; }

bool launches_recorded() { return recording; }

std::vector<Launch>& recorded_launches() { return recorded; }

void add_launch(Launch launch) {
  launch.family = scope_family;
  launch.algorithm = scope_algorithm;
  launch.reason = scope_reason;
  recorded.push_back(std::move(launch));
}

void set_launch_scope(const char* family, const char* algorithm, const char* reason) {
  scope_family = family;
  scope_algorithm = algorithm;
  scope_reason = reason;
}

}  // namespace treadle
