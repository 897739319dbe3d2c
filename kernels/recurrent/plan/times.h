// Estimates of the time that each algorithm needs for a step, for the planner (plan/plan.cpp).
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/recurrent/engine/shapes.h"
#include "kernels/recurrent/plan/plan.h"
#include "kernels/recurrent/tiles/sizes.h"

// This is a separate namespace because the kernels define constants and functions with the same
// names.
namespace treadle::plan_times {

inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// All times are per step, in us. They were fitted to measurements of LLTM on an H200 and are scaled
// to the products and the exchange of other cells (the benchmark suite sweep_cell_algorithms shows
// how well this works). The time of a cluster is the sum of a minimum, the time of the products,
// and the time of the exchange of h (forward) or of the gradients of all gates that have a product
// with h (backward). `exact` means that the layer is float32, multiplied by fma.
inline double cluster_time(const ClusterShape& shape, int rows, int state_gates, bool backward,
                           bool exact) {
  // The multiplications and the bytes exchanged, relative to those of three gates. With fewer gates
  // the exchange is hardly faster: the float32 backward pass of an RNN with H 512 took 1.3, 1.9 and
  // 2.2 us per step for 1, 2 and 3 rows on an H200, that of a GRU 1.8, 2.6 and 3.3.
  const double work = state_gates / 3.0, sent = backward ? std::max(work, 1.0) : 1;
  const auto hidden = static_cast<double>(shape.hidden());
  // With a single block there is no exchange.
  if (shape.blocks == 1) {
    return (exact ? 0.25 : 0.2) + work * 1.8e-5 * shape.units * hidden * rows;
  }
  if (exact) {
    // Weights that are kept in shared memory are loaded again for every row.
    const double loads = fp32_weights(shape, state_gates) > kFp32Weights ? 2 : 1;
    // This case was fitted separately, to packed batches at H 256, where the grid is the
    // alternative.
    if (!backward && shape.blocks >= 8 && hidden <= 256) {
      return 0.8 + (loads * work * 1.9e-5 * shape.units + 2e-4) * hidden * rows;
    }
    const double each = loads * work * 1.3e-5 * shape.units + sent * (backward ? 7.5e-4 : 2e-4);
    return 0.7 + each * hidden * rows;
  }
  // In the backward pass, blocks of 64 units multiply at less than half the speed of other blocks.
  const double each = !backward ? 2.2e-5 : shape.units < 64 ? 2.7e-5 : 6e-5;
  return (backward ? 0.40 : 0.38) + work * each * hidden * shape.units * shape.tiles +
         sent * (backward ? 1.4e-4 : 7e-5) * hidden * rows;
}

// The time of the dense kernels in half types, with `stride` rows per tile. It depends on the
// products, on how many rows are sent (in pairs in the backward pass), and on how many slots of 32
// sums a warp computes one after the other (cluster/dense.h).
inline double dense_time(const ClusterShape& shape, int stride, int state_gates, bool backward) {
  const int pairs = (stride + 1) / 2, turns = pairs * shape.tiles;
  const double products =
      state_gates / 3.0 * 1e-5 * static_cast<double>(shape.hidden()) * shape.units * shape.tiles;
  const double sent = 1e-4 * static_cast<double>(shape.hidden()) * shape.tiles;
  if (backward) {
    const int warps = shape.units == 16 ? 4 : shape.units == 48 ? 12 : 8;
    const auto more = static_cast<double>(ceil_div(shape.units / 16 * turns, warps) - 1);
    return 0.33 + 1.7 * products + 1.05 * sent * 2 * pairs + 0.4 * more;
  }
  const auto more = static_cast<double>(ceil_div(turns, shape.units >= 64 ? 2 : 4) - 1);
  // Weights of four gates of 64 units are partly in shared memory.
  const double each = state_gates == 4 && shape.units * shape.hidden() >= 64 * 512 ? 2.2 : 1.65;
  // Blocks of 48 units, which only cells with at most three gates have, keep weights in shared
  // memory, too. On an H200 the grid was faster for GRUs with H 768 and 16 rows or more.
  const double loads = shape.units == 48 && state_gates == 3 ? 0.1 + 0.045 * stride : 0;
  return 0.33 + each * products + 0.8 * sent * stride + 0.11 * more + loads;
}

// The factor by which a cell with another number of gates is slower than one with three. A fourth
// gate adds the fraction `each`. A cell with one gate has a third of the products, but its chain of
// dependent instructions is as long, so its factor is more than a third.
inline double factor_of_gates(double each, int state_gates) {
  return state_gates == 1 ? 1 / (1 + each) : 1 + each * (state_gates - 3);
}

// The time of float32 on tensor cores. Compared with the dense kernels in half types, there are two
// to five products instead of one, twice as many bytes to send, and slower activation functions.
inline double split_time(const ClusterShape& shape, int rows, int state_gates) {
  const int wide = rows <= 4 ? 0 : 3, narrow = rows <= 4 || rows > 8 ? 2 : 0;
  const auto hidden = static_cast<double>(shape.hidden());
  const double products = 1.65e-5 * hidden * shape.units * (wide + narrow);
  const double gates = factor_of_gates(0.7, state_gates);
  return 0.43 + gates * (products + 1.6e-4 * hidden * rows) + (rows > 8 ? 0.3 : 0.0);
}

// The time of a step of the grid is the larger of `chain`, the latency of product -> sum -> cell ->
// exchange, and `busy`, the time that a block needs for all its tiles. Each is a constant plus a
// time per row, in us, for three gates; a fourth gate adds the fraction `gate`.
struct GridTime {
  double chain, chain_row, busy, busy_row, gate;
};

// In the backward pass, the exchange takes most of the time; in float32, the time depends on the
// layout of GridSplitBackward. `equal` means that the GPU uses the layouts without setmaxnreg, in
// which every warp has the same number of registers. The entries for `equal` were fitted to sm_80
// code on an H200 limited to 108 multiprocessors and to an A100's shared-memory size. Layouts of H
// 128, 256 and 2048 that have no entry of their own use those of 512 and 1024.
inline GridTime grid_times(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                           bool backward) {
  const bool h512 = sizes.hidden <= kGridNarrowHidden, half = is_half(sizes.dtype);
  const bool equal = !device.setmaxnreg();
  if (backward && !half) {
    if (!h512 && !device.tf32) return {2.3, 0.145, 0, 0.228, 0.35};
    if (h512 && device.tf32) return {1.3, 0.12, 0, 0.12, 0.13};
    if (equal && sizes.hidden <= kGrid256) return {1.2, 0.1, 0.45, 0.15, 0.3};
    if (equal && h512) return {1.95, 0.16, 0.45, 0.22, 0.3};
    return {1.95, 0.075, 0.45, 0.1, 0.3};
  }
  if (backward && h512) return {0.89, 0.07, 1.1, 0.06, 0.17};
  if (backward) return {1.3, 0.095, 0.15, 0.135, 0.36};
  if (!half && sizes.hidden > kGridHidden) return {1.5, 0.12, 0.5, 0.13, 0.22};
  if (!half && equal && sizes.hidden <= kGrid128) return {0.75, 0.042, 0.1, 0.053, 0.04};
  if (!half && device.tf32 && h512) return {0.9, 0.037, 0.38, 0.055, 0.09};
  if (!half && device.tf32) return {1.25, 0.036, 0.35, 0.061, equal ? 0.45 : 0.2};
  if (!half && h512) return {0.7, 0.06, 0.1, equal ? 0.105 : 0.078, 0.2};
  if (!half) return {1.75, 0.045, 0.45, 0.128, 0.33};
  if (h512) return {0.86, 0.023, 0.38, 0.036, 0.09};
  if (equal) return {1.05, 0.04, 0.35, 0.066, 0.35};
  if (sizes.hidden > kGridHidden) return {1.7, 0.06, 0.5, 0.1, 0.22};
  return {1.05, 0.026, 0.35, 0.043, 0.2};
}

inline double grid_time(int64_t launches, int rows, const RecurrenceSizes& sizes,
                        const RecurrenceDevice& device, bool backward) {
  const GridTime of = grid_times(sizes, device, backward);
  const double gates = factor_of_gates(of.gate, cell_info(sizes.cell).state_gates);
  const double time = std::max(of.chain + of.chain_row * rows, of.busy + of.busy_row * rows);
  return static_cast<double>(launches) * gates * time;
}

// ---- GPUs that were not measured

// The factor by which a step of a persistent kernel is slower on a GPU that was not measured. A
// step is a chain of instruction and L2 latencies, which scale with the clock.
inline double slower(const RecurrenceDevice& device) {
  if (device.clusters()) return 1;
  return static_cast<double>(kHopperMhz) / std::max(device.clock_mhz, 1);
}

// The speed of cuBLAS on a GPU that was not measured, relative to an H200. It is the ratio of peak
// throughputs in the data sheets, for half types with float32 accumulation or for float32. This
// assumes that the small products of a step reach the same fraction of the peak on every GPU, which
// has not been measured.
inline double multiply_speed(const RecurrenceDevice& device, bool half) {
  if (device.clusters() || !device.persistent()) return 1;
  const double chip = device.multiprocessors / 132.0 / slower(device);
  const bool a100 = device.architecture == 80;
  if (half) return chip * (a100 ? 0.5 : 0.125);
  return chip * (a100 ? 0.5 : 1);
}

// The speed of cuBLAS on an H200, for the product of a step.
inline double flop_per_us(Dtype dtype, bool tf32) {
  return is_half(dtype) ? 4e8 : dtype == Dtype::kFloat && tf32 ? 1.5e8 : 4e7;
}

// The algorithm `step` has a GEMM and a pointwise kernel per time step. The GEMM's result passes
// through global memory in float32, even for half types. A step takes at least as long as the host
// needs to launch both kernels.
inline double launched_time(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                            bool backward) {
  const double hidden = static_cast<double>(sizes.hidden), rows = static_cast<double>(sizes.batch);
  // cuBLAS uses TF32 only if rows have whole 16-byte chunks: with H 1150 and 80 rows, the step of
  // an LSTM took 32 us on an H200.
  const bool rounded = device.tf32 && !is_half(sizes.dtype) && sizes.hidden % 4 == 0;
  const CellInfo& cell = cell_info(sizes.cell);
  const double flop = rows * hidden * hidden * (2 * cell.state_gates);
  const double host = backward ? (rounded ? 14 : 19) : 13,
               speed = multiply_speed(device, is_half(sizes.dtype) || rounded),
               of_products = flop / (speed * flop_per_us(sizes.dtype, rounded));
  const double bytes = rows * hidden * (backward ? 6 * cell.gates + 22 : 12 * cell.gates + 20);
  double time = host + of_products;
  if (is_half(sizes.dtype)) {
    time = std::max(host, (backward ? 4 : 8) + of_products + bytes / 6e6);
  } else if (rounded && !backward) {
    time = std::max(12.0, 6 + of_products + bytes / 9e6);
  }
  return static_cast<double>(sizes.directions) * time;
}

// `tiles` includes the input GEMM, which the estimates of other algorithms omit. The time of this
// GEMM, assuming an input with H features, is subtracted, so that the estimates can be compared.
inline double tiles_time(const RecurrenceSizes& sizes, const RecurrenceDevice& device) {
  const CellInfo& cell = cell_info(sizes.cell);
  const int words = is_half(sizes.dtype) ? 1 : 2;
  const double time =
      plan_tiles(cell.state_gates, words, sizes.batch, sizes.hidden, device.multiprocessors).time;
  const double hidden = static_cast<double>(sizes.hidden);
  const double flop = static_cast<double>(sizes.batch) * hidden * hidden * 2 * cell.input_gates;
  return static_cast<double>(sizes.directions) * (time - flop / (5.5e8 / words));
}

}  // namespace treadle::plan_times
