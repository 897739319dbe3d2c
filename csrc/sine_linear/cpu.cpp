// sine_linear on the CPU: ATen's GEMM, in float32 for half types, and the pointwise kernels of
// kernels/sine_linear/cpu on all threads. Twin: cuda/sine_linear.cpp.
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include "kernels/sine_linear/cpu/jet.h"
#include "kernels/sine_linear/cpu/sine_linear.h"
#include "sine_linear/jet.h"

namespace treadle {

// The minimum number of elements of a task, which is 10 to 20 us of work.
static constexpr int64_t kGrain = 8192;
// The maximum size of a chunk's product, which is small enough to stay in the cache.
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

// ---- jets

static void jet_forward_cpu(const SineJetForward& args, at::Device) {
  at::parallel_for(0, args.rows * args.columns, kGrain / args.parts.total() + 1,
                   [&](int64_t begin, int64_t end) { cpu::sine_jet_forward(args, begin, end); });
}

static void jet_backward_cpu(SineJetBackward args, const Tensor& grad_z, const Tensor& grad_bias) {
  at::parallel_for(0, args.rows * args.columns, kGrain / args.parts.total() + 1,
                   [&](int64_t begin, int64_t end) { cpu::sine_jet_backward(args, begin, end); });
  if (!grad_bias.defined()) return;
  Tensor sums = grad_bias;
  at::sum_out(sums, grad_z.select(0, 0), 0);
}

static constexpr SineJetBackend kCpuJetBackend{
    kCpuBackend,           /*multiplies=*/false,
    /*rounds_rest=*/false, jet_forward_cpu,      /*fused_forward=*/nullptr, jet_backward_cpu};

TORCH_LIBRARY_IMPL(treadle, CPU, m) {
  register_sine_linear<kCpuBackend>(m);
  register_sine_jet<kCpuJetBackend>(m);
}

}  // namespace treadle
