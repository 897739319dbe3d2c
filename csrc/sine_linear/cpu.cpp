// sine_linear on the CPU: ATen's GEMM in acc_t, and the pointwise kernels of cpu/sine_linear.h on
// all threads. Twin: cuda/sine_linear.cpp.
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include "kernels/sine_linear/cpu/sine_linear.h"
#include "sine_linear/sine_linear.h"

namespace treadle {

// Elements of a task, at least: 10 to 20 us of work.
static constexpr int64_t kGrain = 8192;
// Products of a chunk stay in the cache.
static constexpr int64_t kGemmBytes = int64_t{1} << 23;

static Tensor gemm_operand_cpu(const Tensor& t) { return t.to(at::toOpMathType(t.scalar_type())); }

static void gemm_cpu(const Tensor& out, const Tensor& x, const Tensor& weight) {
  Tensor z = out;
  at::mm_out(z, x, weight.t());
}

static void forward_cpu(const SineLinearForward& args, at::Device) {
  at::parallel_for(0, args.rows * args.columns, kGrain,
                   [&](int64_t begin, int64_t end) { cpu::sine_linear_forward(args, begin, end); });
}

static void slope_cpu(const SineLinearSlope& args, at::Device) {
  at::parallel_for(0, args.numel, kGrain,
                   [&](int64_t begin, int64_t end) { cpu::sine_linear_slope(args, begin, end); });
}

static void slope_backward_cpu(const SineLinearSlopeBackward& args, at::Device) {
  at::parallel_for(0, args.numel, kGrain, [&](int64_t begin, int64_t end) {
    cpu::sine_linear_slope_backward(args, begin, end);
  });
}

static constexpr SineLinearBackend kCpuBackend{
    gemm_operand_cpu,          gemm_cpu,  kGemmBytes,         forward_cpu,
    /*fused_forward=*/nullptr, slope_cpu, slope_backward_cpu,
    /*backward_bias=*/nullptr,
    /*fused_backward=*/nullptr};

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_sine_linear<kCpuBackend>(m); }

}  // namespace treadle
