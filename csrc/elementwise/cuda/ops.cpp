// The elementwise ops on CUDA. Kernels: kernels/elementwise/*.cu.
#include "elementwise/cuda/loop.h"
#include "elementwise/scale.h"
#include "elementwise/unary.h"
#include "elementwise/vector_add.h"
#include "kernels/elementwise/launchers.h"

namespace treadle {
namespace {

// vector_add of two tensors. If one of them is a 0-dim CPU tensor, whose memory the device must not
// read, it is passed as a number.
struct AddOnCuda {
  template <auto launch, class Parameters>
  static void run(ElementwiseLoop& loop, const Parameters& parameters) {
    for (const int operand : {1, 2}) {
      if (!loop.iterator || !loop.iterator->is_cpu_scalar(operand)) continue;
      const ScalarArg scalar = to_scalar_arg(loop.iterator->tensor(operand).item());
      loop.iterator->remove_operand(operand);
      --loop.operands;
      const auto [alpha] = parameters;
      return OnCuda::run<launch_vector_add_scalar>(
          loop, std::tuple(scalar, /*scalar_is_b=*/operand == 2, alpha));
    }
    OnCuda::run<launch>(loop, parameters);
  }
};

TORCH_LIBRARY_IMPL(treadle, CUDA, m) {
  ScaleOp::register_forms<ScaleOp::Kernels<OnCuda, launch_scale>>(m);
  VectorAddOp::register_forms<VectorAddOp::Kernels<AddOnCuda, launch_vector_add>>(m);
  using Number = VectorAddNumberOp;
  Number::register_forms<Number::Kernels<OnCuda, launch_vector_add_scalar>>(m);
#define TREADLE_REGISTER_UNARY(op, Type, ...)                          \
  Type##Op::register_forms<Type##Op::Kernels<OnCuda, launch_##op>>(m); \
  UnaryGradient<Type##Op>::register_forms<                             \
      UnaryGradient<Type##Op>::Kernels<OnCuda, launch_##op##_backward>>(m);
  TREADLE_UNARY_OPS(TREADLE_REGISTER_UNARY)
#undef TREADLE_REGISTER_UNARY
}

}  // namespace
}  // namespace treadle
