#include "treadle/info.h"

#include <c10/util/StringUtil.h>
#include <torch/version.h>

#include "common/cpu/isa.h"
#include "common/launches.h"

namespace treadle {
namespace {

thread_local bool recording = false;
thread_local std::vector<Launch> recorded;
thread_local const char *algorithm = "", *reason = "";

}  // namespace

bool recording_launches() { return recording; }

void record_launches(bool on) { recording = on; }

void add_launch(Launch launch) {
  launch.algorithm = algorithm;
  launch.reason = reason;
  recorded.push_back(std::move(launch));
}

LaunchScope::LaunchScope(const char* new_algorithm, const char* new_reason) {
  algorithm = new_algorithm;
  reason = new_reason;
}

LaunchScope::~LaunchScope() { algorithm = reason = ""; }

std::vector<Launch> take_launches() {
  std::vector<Launch> taken;
  taken.swap(recorded);
  return taken;
}

std::string compiled_with() {
  // c10::str, not "+": of "+" g++ 12 warns in C++20 that a copy passes the end of a short string.
  return c10::str("{\"torch\": \"", TORCH_VERSION, "\", \"cuda\": \"", cuda_version(),
                  "\", \"compiler\": \"", __VERSION__, "\", \"isa\": \"", cpu::isa_name(), "\"}");
}

}  // namespace treadle
