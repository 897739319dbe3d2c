// lltm_layer: LLTM cells over a whole sequence, one layer in D directions (1, or 2 with one
// backward in time): what its kernels, its derivatives and its vmap rule share. Shapes: T steps, B
// rows, S rows of all steps of a packed batch, I inputs, H hidden.
//   input [T, B, I]               or [S, I] with batch_sizes [T] (int64 on the CPU, not growing)
//   h0, c0, h_n, c_n [D, B, H]    c0 and c_n in input's dtype, or float beside half types
//   weight_ih [D, 3H, I], weight_hh [D, 3H, H], bias [D, 3H] or none; rows i, o, z
//   output [T, B, D*H]            or [S, D*H]
//   gates [D, T, B, 3H]           or [D, S, 3H]: before their functions, bias in them
// The backward op computes anew the c of every step, from gates; with `recompute` gates are [0],
// and it computes them, too.
#pragma once

#include <array>
#include <string_view>
#include <tuple>

#include "dispatch.h"

namespace treadle {

// Which of input, h0, c0, weight_ih, weight_hh, bias get a gradient.
using LayerMask = std::array<bool, 6>;
using LayerResults = std::tuple<Tensor, Tensor, Tensor>;                        // output, h_n, c_n
using LayerSaved = std::tuple<Tensor, Tensor, Tensor, Tensor>;                  // and gates
using LayerGrads = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;  // as in LayerMask

using LayerSignature = LayerResults(const Tensor& input, const OptionalTensor& batch_sizes,
                                    const Tensor& h0, const Tensor& c0, const Tensor& weight_ih,
                                    const Tensor& weight_hh, const OptionalTensor& bias,
                                    bool recompute, c10::string_view regime);

using LayerForwardSignature = LayerSaved(const Tensor& input, const OptionalTensor& batch_sizes,
                                         const Tensor& h0, const Tensor& c0,
                                         const Tensor& weight_ih, const Tensor& weight_hh,
                                         const OptionalTensor& bias, bool recompute,
                                         c10::string_view regime);

using LayerBackwardSignature = LayerGrads(const OptionalTensor& grad_output,
                                          const OptionalTensor& grad_h_n,
                                          const OptionalTensor& grad_c_n, const Tensor& input,
                                          const OptionalTensor& batch_sizes, const Tensor& h0,
                                          const Tensor& c0, const Tensor& weight_ih,
                                          const Tensor& weight_hh, const OptionalTensor& bias,
                                          const Tensor& output, const Tensor& gates, bool recompute,
                                          c10::string_view regime, LayerMask mask);

}  // namespace treadle
