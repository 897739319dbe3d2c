// The passes of lltm_layer whose steps and directions are one launch: around it, the input product
// of all steps, and copies of what the kernels could not read in pieces of 16 bytes.
#include <ATen/Functions.h>

#include <limits>

#include "lltm_layer_run.h"

namespace treadle {
namespace {

constexpr int64_t kPiece = 8;  // elements

int64_t in_pieces(int64_t hidden) { return (hidden + kPiece - 1) / kPiece * kPiece; }

bool aligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0; }

// A copy with zeros behind the last dimension.
Tensor widened(const Tensor& t, int64_t width) {
  auto shape = t.sizes().vec();
  shape.back() = width;
  const Tensor wide = at::empty(shape, t.options());
  wide.narrow(-1, 0, t.size(-1)).copy_(t);
  wide.narrow(-1, t.size(-1), width - t.size(-1)).zero_();
  return wide;
}

PersistentSizes sizes_of(const Layer& layer) {
  return {layer.dtype,
          static_cast<int>(layer.directions),
          static_cast<int64_t>(layer.sequence.steps.size()),
          layer.batch,
          layer.hidden,
          /*starts=*/nullptr,
          /*first_row=*/0,
          layer.batch,
          layer.c0.scalar_type() == layer.input.scalar_type()};
}

}  // namespace

void Layer::persistent_forward(const Tensor& output, const Tensor& h, const Tensor& c,
                               const Tensor& gates) const {
  const int64_t width = in_pieces(hidden), features = input.size(-1), row = kGates * width;
  const bool padded = width != hidden;
  // The kernel overwrites products, each by its gate.
  const Tensor products = gates.defined() && !padded
                              ? gates.view({directions, sequence.rows, row})
                              : at::empty({directions, sequence.rows, row}, input.options());
  Tensor weights = weight_ih;
  if (padded) {
    weights = at::constant_pad_nd(weight_ih.reshape({directions, kGates, hidden, features}),
                                  {0, 0, 0, width - hidden})
                  .reshape({directions, row, features});
  }
  const Tensor x = rows(input);
  for (int64_t d = 0; d < directions; ++d) {
    Tensor own = products[d];
    at::mm_out(own, x, weights[d].t());
  }
  const Tensor weight = weight_hh.contiguous(), h_begin = h0.contiguous(),
               c_begin = c0.contiguous();
  const Tensor b = has(bias) ? bias->contiguous() : Tensor();
  PersistentForward args{};
  args.sizes = sizes_of(*this);
  args.products = products.const_data_ptr();
  args.product_direction = sequence.rows * row;
  args.product_row = row;
  args.product_gate = width;
  args.weight_hh = weight.const_data_ptr();
  if (b.defined()) args.bias = b.const_data_ptr();
  args.h0 = h_begin.const_data_ptr();
  args.h = h.mutable_data_ptr();
  args.c0 = c_begin.const_data_ptr();
  args.c = c.mutable_data_ptr();
  args.output = output.mutable_data_ptr();
  args.output_row = directions * hidden;
  if (gates.defined()) args.gates = gates.mutable_data_ptr();
  backend.persistent_forward(args, sequence, input.device(), plan);
}

void Layer::persistent_backward(const Tensor& gates, const Tensor& grad_output,
                                const Tensor& grad_h_n, const Tensor& grad_c_n,
                                const Tensor& grad_h0, const Tensor& grad_c0,
                                const Tensor& grad_gates) const {
  const int64_t width = in_pieces(hidden), row = kGates * width;
  const bool padded = width != hidden;
  const Tensor c_begin = c0.contiguous(), weight = weight_hh.contiguous();
  PersistentCells cells{};
  cells.sizes = sizes_of(*this);
  cells.gates = gates.const_data_ptr();
  cells.c0 = c_begin.const_data_ptr();
  const std::vector<int64_t> shape{directions, sequence.rows, width};
  const auto options = input.options().dtype(acc);
  // Padding is read with the rest, and not looked at.
  const Tensor c = padded ? at::zeros(shape, options) : at::empty(shape, options);
  cells.cells = c.mutable_data_ptr();
  cells.cell_direction = sequence.rows * width;
  cells.cell_row = width;

  PersistentBackward args{};
  args.sizes = cells.sizes;
  Tensor pieces = gates;
  if (padded || !aligned(gates)) {
    pieces = widened(gates.view({directions, sequence.rows, kGates, hidden}), width);
  }
  args.gates = pieces.const_data_ptr();
  args.gate_direction = sequence.rows * row;
  args.gate_row = row;
  args.gate_gate = width;
  args.cells = cells.cells;
  args.cell_direction = cells.cell_direction;
  args.cell_row = cells.cell_row;
  Tensor grad = grad_output;
  if (grad.defined()) {
    args.grad_direction = width;
    const int64_t apart = grad.stride(0);
    if (padded || !aligned(grad) || grad.stride(1) != 1 || apart % kPiece != 0 ||
        apart > std::numeric_limits<int>::max()) {  // the kernels keep it in an int
      grad = widened(grad.reshape({sequence.rows, directions, hidden}), width).flatten(1);
    }
    args.grad_output = grad.const_data_ptr();
    args.grad_row = grad.stride(0);
  }
  args.weight_hh = weight.const_data_ptr();
  args.c0 = cells.c0;
  const auto data = [](const Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; };
  args.grad_h_n = data(grad_h_n);
  args.grad_c_n = data(grad_c_n);
  args.grad_h0 = data(grad_h0);
  args.grad_c0 = data(grad_c0);
  args.grad_gates = grad_gates.mutable_data_ptr();
  backend.persistent_backward(cells, args, sequence, input.device(), plan);
}

}  // namespace treadle
