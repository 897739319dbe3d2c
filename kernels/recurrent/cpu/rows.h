// The steps of recurrent_layer on the CPU, for csrc/recurrent/run/cpu.cpp. The functions use raw
// memory and no torch. A call computes a part of the batch; a parallel loop may divide the batch
// into any parts without changing results. `panels` has the weights [G_h H, H] in the layout of the
// pack functions. It is null if the caller computes the products with h. Then forward reads
// `state_products`, and backward leaves grad_h unchanged.
#pragma once

#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/recurrent/step_args.h"

namespace treadle::cpu {

// Parts begin at multiples of kRowBlock rows, and of unit_block() units.
inline constexpr int64_t kRowBlock = 8;
constexpr int64_t unit_block(int64_t acc_bytes) { return 128 / acc_bytes; }

// A barrier for threads that compute the same rows. They must run at the same time.
class RowsBarrier {
 public:
  // Waits until all parts of the rows have arrived. The caller counts as `count` parts.
  virtual void wait(int64_t count) = 0;

 protected:
  ~RowsBarrier() = default;
};

// Units first_unit to last_unit of rows begin to end of the batch. A step of a unit reads h of all
// units. So threads that compute the same rows must run at the same time, and share a barrier and
// memory for h.
struct RowsPart {
  int64_t begin, end, first_unit, last_unit;
  RowsBarrier* barrier = nullptr;  // null: this part has all units
  int64_t count = 1;               // for barrier->wait()
  void* h = nullptr;               // if there is a barrier, recurrent_h_bytes() bytes
};

// The bytes of h of some rows, before and after a step.
inline int64_t recurrent_h_bytes(int64_t rows, int64_t hidden, int64_t acc_bytes) {
  const int64_t block = unit_block(acc_bytes);
  return 2 * rows * ((hidden + block - 1) / block * block) * acc_bytes;
}

// Enough bytes for the panels of a weight that has `per_unit` elements for each unit, forward or
// backward, whose padding differs.
inline int64_t recurrent_panel_bytes(int64_t per_unit, int64_t hidden, int64_t acc_bytes) {
  const int64_t block = unit_block(acc_bytes);
  return (hidden + block - 1) / block * block * per_unit * acc_bytes;
}

TREADLE_CPU_FUNCTION(recurrent_pack_forward,
                     (CellKind cell, Dtype dtype, const MatrixView& weight, int64_t hidden,
                      int64_t first_unit, int64_t last_unit, void* panels),
                     (cell, dtype, weight, hidden, first_unit, last_unit, panels))
TREADLE_CPU_FUNCTION(recurrent_pack_backward,
                     (CellKind cell, Dtype dtype, const MatrixView& weight, int64_t hidden,
                      int64_t first_unit, int64_t last_unit, void* panels),
                     (cell, dtype, weight, hidden, first_unit, last_unit, panels))
TREADLE_CPU_FUNCTION(recurrent_pack_input,
                     (CellKind cell, Dtype dtype, const MatrixView& weight, int64_t inputs,
                      int64_t hidden, int64_t first_unit, int64_t last_unit, void* panels),
                     (cell, dtype, weight, inputs, hidden, first_unit, last_unit, panels))
TREADLE_CPU_FUNCTION(recurrent_layer_forward,
                     (const RecurrenceForward& args, const void* panels, const RowsPart& part),
                     (args, panels, part))
TREADLE_CPU_FUNCTION(recurrent_layer_backward,
                     (const RecurrenceBackward& args, const void* panels, const RowsPart& part),
                     (args, panels, part))
TREADLE_CPU_FUNCTION(recurrent_layer_c_states,
                     (const RecurrenceCStates& args, const RowsPart& part), (args, part))

// A product of rows x [R, K] with a weight W that is used only once, so that packing it would not
// pay off. x and the result have the dtype of sums.
//   kInput     x W_ih^T, [R, G_i H]
//   kState     x W_hh^T, [R, G_h H]; the blocks of columns are in the order of W_hh's rows
//   kGradient  x W_hh, [R, H], where x has G_h H columns in the order of the gates
// A row's bits are those that the steps compute with packed weights.
enum class ProductOf { kInput, kState, kGradient };

struct RowProducts {
  MatrixView weight;
  int64_t hidden, depth;  // H and K
  const void* x;
  int64_t x_stride, rows;
  void* out;
  int64_t out_stride;
};

TREADLE_CPU_FUNCTION(recurrent_products,
                     (CellKind cell, Dtype dtype, ProductOf product, const RowProducts& args,
                      int64_t first_unit, int64_t last_unit),
                     (cell, dtype, product, args, first_unit, last_unit))

// The functions above for one cell: the library's, or functions that were compiled for a formula.
struct RowsFunctions {
  using Pack = void(CellKind cell, Dtype dtype, const MatrixView& weight, int64_t hidden,
                    int64_t first_unit, int64_t last_unit, void* panels);

  Pack *pack_forward, *pack_backward;
  void (*pack_input)(CellKind cell, Dtype dtype, const MatrixView& weight, int64_t inputs,
                     int64_t hidden, int64_t first_unit, int64_t last_unit, void* panels);
  void (*forward)(const RecurrenceForward& args, const void* panels, const RowsPart& part);
  void (*backward)(const RecurrenceBackward& args, const void* panels, const RowsPart& part);
  void (*c_states)(const RecurrenceCStates& args, const RowsPart& part);
  void (*products)(CellKind cell, Dtype dtype, ProductOf product, const RowProducts& args,
                   int64_t first_unit, int64_t last_unit);
};

}  // namespace treadle::cpu
