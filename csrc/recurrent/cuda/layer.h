// Declarations that the files of recurrent_layer on CUDA share.
#pragma once

#include "common/cuda/launch.h"
#include "recurrent/run/run.h"

namespace treadle {

inline void check_units(const char* op, int64_t batch, int64_t hidden) {
  TORCH_CHECK(batch * hidden < int64_t{1} << 31, op, ": B * H must be less than 2^31 on CUDA, got ",
              batch, " * ", hidden);
}

// f(stream) on the device.
template <class F>
void with_stream(at::Device device, const F& f) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream().stream();
  f(stream);
}

// ---- for algorithms that run all steps in one launch: persistent.cpp

void c_states_cuda(const RecurrenceCStates& args, int64_t d, const Sequence& sequence,
                   at::Device device);
void persistent_forward_cuda(PersistentForward args, const Sequence& sequence, at::Device device,
                             const RecurrencePlan& plan);
void persistent_backward_cuda(PersistentCStates c_states, PersistentBackward args,
                              const Sequence& sequence, at::Device device,
                              const RecurrencePlan& plan);

}  // namespace treadle
