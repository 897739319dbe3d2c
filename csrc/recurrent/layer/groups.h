// Layers whose W_hh is block-diagonal: the H hidden units are in n groups, and a row of weight_hh
// [D, GH, H/n] has the weights of one gate of a unit for the H/n units of its own group. The
// kernels run such a layer as n layers of H/n units side by side. For the kernels, each direction d
// of time becomes n directions: their direction d n + j is group j of direction d. The units of a
// group are adjacent, so the output needs no reordering.
#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// The number of groups. The arguments must have been checked.
inline int64_t groups_of(const LayerArguments& a) {
  const auto hidden = a.h0.sym_size(-1), own = a.weight_hh.sym_size(-1);
  if (hidden == own || hidden == 0) return 1;
  return (hidden / own).guard_int(__FILE__, __LINE__);
}

// Splits the units of an array [D, ..., K * H], or of a weight [D, K * H, ...] (`dim` 1), into
// groups: [D * n, ..., K * H/n] or [D * n, K * H/n, ...], where K is `blocks`. An undefined tensor
// stays undefined.
inline Tensor in_groups(const Tensor& t, int64_t groups, int64_t blocks, int64_t dim) {
  if (!t.defined() || groups == 1) return t;
  dim = dim < 0 ? t.dim() + dim : dim;
  const auto own = t.sym_size(dim) / (blocks * groups);
  c10::SymDimVector shape(t.sym_sizes());
  shape[0] *= groups;
  shape[dim] = own * blocks;
  const Tensor parts = t.unflatten_symint(dim, {blocks, groups, own});
  return parts.movedim(dim + 1, 1).reshape_symint(shape);
}

// The inverse of in_groups.
inline Tensor from_groups(const Tensor& t, int64_t groups, int64_t blocks, int64_t dim) {
  if (!t.defined() || groups == 1) return t;
  dim = dim < 0 ? t.dim() + dim : dim;
  const auto own = t.sym_size(dim) / blocks;
  c10::SymDimVector shape(t.sym_sizes());
  shape[0] = shape[0] / groups;
  shape[dim] *= groups;
  const Tensor parts = t.unflatten_symint(dim, {blocks, own}).unflatten(0, {-1, groups});
  return parts.movedim(1, dim + 1).reshape_symint(shape);
}

// Applies f(tensor, blocks of H, dimension of the units) to each array of the arguments, whose
// parameters have the dimension D.
template <class F>
LayerArguments map_units(const LayerArguments& a, const CellInfo& cell, const F& f) {
  LayerArguments found = a;
  found.h0 = f(a.h0, 1, -1);
  found.c0 = f(a.c0, cell.c_parts, -1);
  found.weight_ih = f(a.weight_ih, cell.input_gates, 1);
  found.weight_hh = f(a.weight_hh, cell.state_gates, 1);
  found.bias_ih = f(a.bias_ih, cell.input_gates, 1);
  found.bias_hh = f(a.bias_hh, cell.state_gates, 1);
  found.reset_h = f(a.reset_h, 1, -1);
  found.reset_c = f(a.reset_c, cell.c_parts, -1);
  return found;
}

// The arguments as the kernels see them. `zeros` means that all of h0 and c0 is zero, so that their
// elements need no copy in another order.
inline LayerArguments in_groups(const LayerArguments& a, int64_t groups, bool zeros = false) {
  LayerArguments given = a;
  if (a.one_direction()) each_parameter(given, [](const Tensor& t) { return t.unsqueeze(0); });
  if (zeros) given.h0 = given.c0 = Tensor();
  LayerArguments found = map_units(
      given, cell_info(a.cell),
      [&](const Tensor& t, int64_t k, int64_t dim) { return in_groups(t, groups, k, dim); });
  if (zeros) {
    const auto all = a.h0.sym_size(0) * groups, batch = a.h0.sym_size(1);
    found.h0 = a.h0.reshape_symint({all, batch, a.h0.sym_size(2) / groups});
    found.c0 = a.c0.reshape_symint({all, batch, a.c0.sym_size(2) / groups});
  }
  found.h0 = found.h0.contiguous();  // otherwise products copy it in each direction
  found.groups = groups;
  return found;
}

}  // namespace treadle
