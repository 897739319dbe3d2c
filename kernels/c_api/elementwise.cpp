// The elementwise functions of kernels.h, on the CPU and on CUDA.
#include "kernels/c_api/arrays.h"
#include "kernels/c_api/cuda.h"
#include "kernels/c_api/threads.h"
#include "kernels/elementwise/cpu/kernels.h"
#ifdef TREADLE_CUDA_VERSION
#include "kernels/elementwise/launchers.h"
#endif

namespace treadle {
namespace {

bool is_floating(Dtype dtype) { return dtype >= Dtype::kHalf; }

// The order is bool, integer, floating-point. A value may be converted to the same or a later kind.
int kind(Dtype dtype) { return dtype == Dtype::kBool ? 0 : is_floating(dtype) ? 2 : 1; }

ScalarArg number(const char* name, const treadle_number& given, Dtype compute) {
  require(given.is_integer != 0 || is_floating(compute), name, " must be an integer where out is ",
          dtype_name(compute), ", got ", given.real);
  return {given.real, given.integer, given.is_integer != 0};
}

// Checks a call. Arrays are checked before anything reads them.
ElementwiseSpace checked(const treadle_device* device, const treadle_array* out,
                         std::initializer_list<NamedArray> inputs, bool floating) {
  check_device(device);
  const NamedArray to{"out", out};
  for (const NamedArray& input : inputs) check_array(*device, input);
  check_array(*device, to);
  const ElementwiseSpace space(to, inputs);
  const Dtype compute = space.args.compute;
  require(compute != Dtype::kBool && (is_floating(compute) || !floating), "out.dtype must be ",
          floating ? "floating-point" : "an integer or floating-point dtype", ", got ",
          dtype_name(compute));
  int i = 0;
  for (const NamedArray& input : inputs) {
    const Dtype dtype = space.args.dtypes[++i];
    require(kind(dtype) <= kind(compute), input.name, ".dtype must be one that ",
            dtype_name(compute), " can hold, got ", dtype_name(dtype));
  }
  check_memory(to, inputs);
  return space;
}

constexpr int64_t kGrain = 32768;  // minimum elements per thread, so that starting it pays off

// Calls f(tile) for two-dimensional tiles of the whole space. The longest dimension is divided
// among threads.
template <class F>
void run_cpu(const treadle_device& device, const ElementwiseArgs& args, const F& f) {
  int longest = 0;
  for (int d = 1; d < args.ndim; ++d) {
    if (args.sizes[d] > args.sizes[longest]) longest = d;
  }
  const int64_t others = args.numel / args.sizes[longest];
  in_parallel(device, args.sizes[longest], kGrain / others + 1, [&](int64_t begin, int64_t end) {
    ElementwiseArgs part = args;
    part.sizes[longest] = end - begin;
    for (int i = 0; i < args.operands; ++i) part.data[i] += begin * args.strides[i][longest];
    int64_t strides[2 * kMaxOperands] = {};
    for (int i = 0; i < args.operands; ++i) {
      strides[i] = args.strides[i][0];
      strides[args.operands + i] = args.ndim > 1 ? args.strides[i][1] : 0;
    }
    int64_t at[kMaxDims] = {};
    for (;;) {
      char* data[kMaxOperands];
      for (int i = 0; i < args.operands; ++i) {
        data[i] = part.data[i];
        for (int d = 2; d < args.ndim; ++d) data[i] += at[d] * args.strides[i][d];
      }
      f(cpu::Tile2d{data, strides, part.sizes[0], args.ndim > 1 ? part.sizes[1] : 1, args.dtypes,
                    args.compute});
      int d = 2;
      for (; d < args.ndim && ++at[d] == part.sizes[d]; ++d) at[d] = 0;
      if (d >= args.ndim) return;
    }
  });
}

// Calls on_cpu or on_cuda for the whole space. A build without CUDA never calls on_cuda.
template <class OnCpu, class OnCuda>
void run(const treadle_device& device, const ElementwiseSpace& space, const OnCpu& on_cpu,
         [[maybe_unused]] const OnCuda& on_cuda) {
  if (space.args.numel == 0) return;
  if (device.type == TREADLE_CPU) return run_cpu(device, space.args, on_cpu);
#ifdef TREADLE_CUDA_VERSION
  const cuda::Guard guard(device);
  in_32_bits(space.args, [&](const ElementwiseArgs& part) {
    cuda::check(on_cuda(part, cuda::stream_of(device)));
  });
#endif
}

#ifdef TREADLE_CUDA_VERSION
#define TREADLE_ON_CUDA(call) [&](const ElementwiseArgs& args, cudaStream_t stream) { return call; }
#else
#define TREADLE_ON_CUDA(call) 0
#endif

}  // namespace
}  // namespace treadle

using namespace treadle;

int treadle_vector_add(const treadle_device* device, const treadle_array* a, const treadle_array* b,
                       treadle_number alpha, const treadle_array* out) {
  return guarded([&] {
    const auto space = checked(device, out, {{"a", a}, {"b", b}}, /*floating=*/false);
    const ScalarArg times = number("alpha", alpha, space.args.compute);
    run(
        *device, space, [&](const cpu::Tile2d& tile) { cpu::vector_add(tile, times); },
        TREADLE_ON_CUDA(launch_vector_add(args, times, stream)));
  });
}

int treadle_scale(const treadle_device* device, const treadle_array* x, treadle_number factor,
                  const treadle_array* out) {
  return guarded([&] {
    const auto space = checked(device, out, {{"x", x}}, /*floating=*/false);
    const ScalarArg times = number("factor", factor, space.args.compute);
    run(
        *device, space, [&](const cpu::Tile2d& tile) { cpu::scale(tile, times); },
        TREADLE_ON_CUDA(launch_scale(args, times, stream)));
  });
}

// sine and cosine, and their gradients.
#define TREADLE_DEFINE_UNARY(op, ...)                                                         \
  int treadle_##op(const treadle_device* device, const treadle_array* x,                      \
                   const treadle_array* out) {                                                \
    return guarded([&] {                                                                      \
      const auto space = checked(device, out, {{"x", x}}, /*floating=*/true);                 \
      run(*device, space, cpu::op, TREADLE_ON_CUDA(launch_##op(args, stream)));               \
    });                                                                                       \
  }                                                                                           \
  int treadle_##op##_backward(const treadle_device* device, const treadle_array* grad,        \
                              const treadle_array* x, const treadle_array* out) {             \
    return guarded([&] {                                                                      \
      const auto space = checked(device, out, {{"grad", grad}, {"x", x}}, /*floating=*/true); \
      run(*device, space, cpu::op##_backward,                                                 \
          TREADLE_ON_CUDA(launch_##op##_backward(args, stream)));                             \
    });                                                                                       \
  }
TREADLE_UNARY_OPS(TREADLE_DEFINE_UNARY)
