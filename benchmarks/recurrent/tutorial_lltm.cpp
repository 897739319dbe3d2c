// The host side of the baseline in tutorial.py: products by ATen, and one kernel for the rest of
// each pass.
#include <torch/extension.h>

#include <vector>

using torch::Tensor;

// gates is [B, 3H]; the other tensors are [B, H].
void pointwise_forward(const Tensor& gates, const Tensor& old_cell, Tensor& new_h, Tensor& new_cell,
                       Tensor& i, Tensor& o, Tensor& z);
void pointwise_backward(const Tensor& grad_h, const Tensor& grad_cell, const Tensor& new_cell,
                        const Tensor& i, const Tensor& o, const Tensor& z, const Tensor& gates,
                        Tensor& d_gates, Tensor& d_old_cell);

namespace {

void check(const Tensor& t) {
  TORCH_CHECK(t.is_cuda() && t.is_contiguous(), "expected a contiguous tensor on CUDA");
}

std::vector<Tensor> forward(Tensor input, Tensor weights, Tensor bias, Tensor old_h,
                            Tensor old_cell) {
  for (const Tensor& t : {input, weights, bias, old_h, old_cell}) check(t);
  Tensor both = torch::cat({old_h, input}, 1);
  Tensor gates = torch::addmm(bias, both, weights.t());
  Tensor new_h = torch::zeros_like(old_cell), new_cell = torch::zeros_like(old_cell);
  Tensor i = torch::zeros_like(old_cell), o = torch::zeros_like(old_cell);
  Tensor z = torch::zeros_like(old_cell);
  pointwise_forward(gates, old_cell, new_h, new_cell, i, o, z);
  return {new_h, new_cell, i, o, z, both, gates};
}

std::vector<Tensor> backward(Tensor grad_h, Tensor grad_cell, Tensor new_cell, Tensor i, Tensor o,
                             Tensor z, Tensor both, Tensor gates, Tensor weights) {
  for (const Tensor& t : {grad_h, grad_cell, new_cell, i, o, z, both, gates, weights}) check(t);
  Tensor d_old_cell = torch::zeros_like(new_cell), d_gates = torch::zeros_like(gates);
  pointwise_backward(grad_h, grad_cell, new_cell, i, o, z, gates, d_gates, d_old_cell);
  Tensor d_weights = d_gates.t().mm(both);
  Tensor d_bias = d_gates.sum(0);
  Tensor d_both = d_gates.mm(weights);
  const int64_t h = new_cell.size(1);
  return {d_both.slice(1, h), d_weights, d_bias, d_both.slice(1, 0, h), d_old_cell};
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &forward);
  m.def("backward", &backward);
}
