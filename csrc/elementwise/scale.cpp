#include "elementwise/scale.h"

namespace treadle {

Tensor scale(const Tensor& x, const Scalar& factor) { return ScaleOp::call(x, factor); }

Tensor& scale_out(Tensor& out, const Tensor& x, const Scalar& factor) {
  return ScaleOp::call_out(out, x, factor);
}

Tensor& scale_(Tensor& x, const Scalar& factor) { return ScaleOp::call_inplace(x, factor); }

TREADLE_REGISTER_ELEMENTWISE(ScaleOp, cpu::scale)

}  // namespace treadle
