// Variable-length rows of a padded batch (`lengths`). The layer also runs over the padding, which
// is replaced with zeros, and the results there are not used. So the host does not wait for the
// lengths, which stay on their device.
//  - h after a row's last step is the output of that step.
//  - With one direction, gates that keep c carry it through the padding (keep_cells). With two, c
//    is recomputed (cells.h).
//  - The second direction starts in the padding, so it resets before a row's last step.
// aligned.h does this in another way for cells that must not run over the padding.
#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// lengths [B] of rows of T steps; values outside 0 .. T are clamped.
struct RowLengths {
  Tensor padding;  // [T, B, 1] bool: whether a step comes after the row's last step
  Tensor last;     // [T, B, 1] bool: whether it is the row's last step
  Tensor empty;    // [B, 1] bool: whether the row has no steps
  Tensor t;        // [T, 1]: the steps
  Tensor stop;     // [B]: the lengths, from 0 to T

  RowLengths(const Tensor& lengths, const c10::SymInt& steps);

  // [T, B, 1] bool: true at the step after a row's last step. The second direction uses it.
  Tensor first_after() const { return t.eq(stop).unsqueeze(-1); }
  // Replaces the padding of [T, B, ...] with zeros.
  Tensor without_padding(const Tensor& t) const { return t.masked_fill(padding, 0); }
  // [B, ...] from [T, B, ...]: the values at the last steps, 0 for rows without steps. Computed as
  // a sum, whose derivative needs no scatter.
  Tensor at_last(const Tensor& t) const { return t.masked_fill(last.logical_not(), 0).sum(0); }
};

// A reset state t [D, B, X] or [D, T, B, X], in a shape that broadcasts over steps. If t is
// undefined, the result is zeros like `state` [D, B, X].
Tensor of_steps(const Tensor& t, const Tensor& state);

// Checks lengths [B] against input [T, B, I]. Checks their values only if TREADLE_CHECK_LENGTHS is
// 1.
void check_lengths(const char* op, const Tensor& lengths, const Tensor& input);

// Changes a layer's arguments for variable-length rows. Zeros replace the padding and the initial
// states of rows without steps, because a zero gradient times NaN would be NaN.
LayerArguments with_lengths(LayerArguments layer, const RowLengths& lengths);

// Changes the arguments of a layer of one direction so that its gates keep c in the padding.
LayerArguments keep_cells(LayerArguments layer, const RowLengths& lengths);

// Sets h_n and c_n to the states after each row's last step. `given` are the layer's original
// arguments. `cells` [T, B, H] is c of the first direction, or undefined if c_n is already
// correct.
void set_last_states(Tensor& h_n, Tensor& c_n, const LayerArguments& given, const Tensor& output,
                     const Tensor& cells, const RowLengths& lengths);

}  // namespace treadle
