// The contents page: every op of the package.
// Ops that write into an argument return nothing: a custom op that returns an alias breaks
// torch.compile. Backward ops and lltm_cell_forward are what the Nodes call.
#pragma once

#include <string>

namespace treadle {

inline constexpr const char* kSchemas[] = {
    "vector_add(Tensor a, Tensor b, *, Scalar alpha=1) -> Tensor",
    // Before Scalar: torch.ops tries overloads in turn, and a tensor that is no number gets printed
    // into the error that it throws away.
    "vector_add.out(Tensor a, Tensor b, *, Scalar alpha=1, Tensor(a!) out) -> ()",
    "vector_add.Scalar(Tensor a, Scalar b, *, Scalar alpha=1) -> Tensor",
    "vector_add_(Tensor(a!) a, Tensor b, *, Scalar alpha=1) -> ()",
    "vector_add_.Scalar(Tensor(a!) a, Scalar b, *, Scalar alpha=1) -> ()",

    "scale(Tensor x, Scalar factor) -> Tensor",
    "scale.out(Tensor x, Scalar factor, *, Tensor(a!) out) -> ()",
    "scale_(Tensor(a!) x, Scalar factor) -> ()",

    "sine(Tensor x) -> Tensor",
    "sine.out(Tensor x, *, Tensor(a!) out) -> ()",
    "sine_(Tensor(a!) x) -> ()",
    "sine_backward(Tensor grad, Tensor x) -> Tensor",

    "cosine(Tensor x) -> Tensor",
    "cosine.out(Tensor x, *, Tensor(a!) out) -> ()",
    "cosine_(Tensor(a!) x) -> ()",
    "cosine_backward(Tensor grad, Tensor x) -> Tensor",

    "lltm_cell(Tensor input, Tensor weights, Tensor? bias, Tensor old_h, Tensor old_cell)"
    " -> (Tensor new_h, Tensor new_cell)",
    "lltm_cell_forward(Tensor input, Tensor weights, Tensor? bias, Tensor old_h, Tensor old_cell)"
    " -> (Tensor new_h, Tensor new_cell, Tensor gates)",
    "lltm_cell_backward(Tensor? grad_h, Tensor? grad_cell, Tensor input, Tensor weights,"
    " Tensor? bias, Tensor old_h, Tensor old_cell, Tensor new_cell, Tensor gates, bool[5] mask)"
    " -> (Tensor grad_input, Tensor grad_weights, Tensor grad_bias, Tensor grad_old_h,"
    " Tensor grad_old_cell)",
};

// "scale.out" of "scale.out(Tensor x, ...".
inline std::string schema_name(const char* schema) {
  const std::string text(schema);
  return text.substr(0, text.find('('));
}

}  // namespace treadle
