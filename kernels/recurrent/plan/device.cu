// The properties of a GPU that the planner needs.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "kernels/common/architecture.h"
#include "kernels/recurrent/launchers.h"
#include "kernels/recurrent/plan/plan.h"

namespace treadle {
namespace {

// In tests, layers can be planned for one of these GPUs and run on another. This works because code
// for compute_80 runs on every later GPU (docs/other_gpus.md). The numbers are from NVIDIA's data
// sheets.
struct ImposedGpu {
  const char* name;
  int architecture, multiprocessors, shared_kb, l2_mb, clock_mhz;
};

constexpr ImposedGpu kImposedGpus[] = {
    {"A100", 80, 108, 163, 40, 1410}, {"RTX3090", 86, 82, 99, 6, 1695},
    {"RTX3060", 86, 28, 99, 3, 1777}, {"RTX4090", 89, 128, 99, 72, 2520},
    {"L4", 89, 58, 99, 48, 2040},
};

cudaError_t impose(const char* name, RecurrenceDevice* found) {
  for (const ImposedGpu& gpu : kImposedGpus) {
    if (std::strcmp(gpu.name, name) != 0) continue;
    found->architecture = gpu.architecture;
    found->multiprocessors = gpu.multiprocessors;
    found->l2_bytes = size_t{1024} * 1024 * gpu.l2_mb;
    found->shared_bytes = size_t{1024} * gpu.shared_kb;
    found->clock_mhz = gpu.clock_mhz;
    return cudaSuccess;
  }
  return cudaErrorInvalidDevice;
}

cudaError_t ask_device(int index, RecurrenceDevice* found) {
  int major = 0, minor = 0, l2 = 0, shared = 0, khz = 0;
  const struct {
    int* to;
    cudaDeviceAttr attribute;
  } questions[] = {
      {&major, cudaDevAttrComputeCapabilityMajor},
      {&minor, cudaDevAttrComputeCapabilityMinor},
      {&found->multiprocessors, cudaDevAttrMultiProcessorCount},
      {&l2, cudaDevAttrL2CacheSize},
      {&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin},
      {&khz, cudaDevAttrClockRate},
  };
  for (const auto& [to, attribute] : questions) {
    const cudaError_t error = cudaDeviceGetAttribute(to, attribute, index);
    if (error != cudaSuccess) return error;
  }
  found->architecture = architecture_of(major, minor);
  found->l2_bytes = static_cast<size_t>(l2);
  found->shared_bytes = static_cast<size_t>(shared);
  if (khz > 0) found->clock_mhz = khz / 1000;
  const char* const imposed = std::getenv("TREADLE_IMPOSED_GPU");
  return imposed == nullptr ? cudaSuccess : impose(imposed, found);
}

}  // namespace

cudaError_t describe_device(int index, RecurrenceDevice* device) {
  // The driver is slow to report the clock, so each GPU is queried only once.
  constexpr int kMost = 64;
  static RecurrenceDevice known[kMost];
  static std::atomic<bool> asked[kMost] = {};
  static std::mutex mutex;
  *device = {};
  device->cuda = true;
  if (index < 0 || index >= kMost) return ask_device(index, device);
  if (!asked[index].load(std::memory_order_acquire)) {
    const std::lock_guard<std::mutex> lock(mutex);
    const cudaError_t error = ask_device(index, device);
    if (error != cudaSuccess) return error;
    known[index] = *device;
    asked[index].store(true, std::memory_order_release);
  }
  *device = known[index];
  return cudaSuccess;
}

}  // namespace treadle
