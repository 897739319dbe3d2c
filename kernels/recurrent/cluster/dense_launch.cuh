// Launches the dense cluster kernels (cluster/dense.cuh), for any cell. cluster/call.cuh declares
// run_cluster_dense().
#pragma once

#include <array>
#include <type_traits>

#include "kernels/recurrent/cluster/call.cuh"
#include "kernels/recurrent/cluster/dense_backward.cuh"
#include "kernels/recurrent/cluster/dense_forward.cuh"

namespace treadle {

// What identifies a dense kernel of a cell and a pass.
struct DenseId {
  size_t shape;  // index in kClusterShapes
  int tile_rows;
  bool resets;
};

// Calls f(DenseId) for each dense kernel of a cell.
template <class Cell, bool backward, class F>
constexpr void for_each_dense(const F& f) {
  for (size_t i = 0; i < kShapes; ++i) {
    const ShapeKernels kernels = kernels_of<Cell>(i);
    for (const bool resets : {false, true}) {
      if (resets && !takes_dense_resets(Cell::kGates, Cell::kCParts)) continue;
      const RowCounts counts = kernels.dense(backward, resets);
      for (size_t k = 0; k < counts.size(); ++k) f(DenseId{i, counts.get(k), resets});
    }
  }
}

template <class Cell, bool backward>
constexpr size_t dense_count() {
  size_t count = 0;
  for_each_dense<Cell, backward>([&](const DenseId&) { ++count; });
  return count;
}

template <class Cell, bool backward>
constexpr auto dense_ids() {
  std::array<DenseId, dense_count<Cell, backward>()> ids{};
  size_t count = 0;
  for_each_dense<Cell, backward>([&](const DenseId& id) { ids[count++] = id; });
  return ids;
}

// A table of kernels takes less time to compile than a function that visits them.
template <class Args>
struct DenseKernel {
  DenseId id;
  PersistentKernel<Args> kernel;  // null if it is compiled at run time
  int threads, bytes;
};

template <class Cell, class T, class Args, size_t shape, int rows, bool resets>
constexpr DenseKernel<Args> dense_kernel() {
  constexpr bool kBackward = std::is_same_v<Args, PersistentBackward>;
  constexpr ClusterShape s = kClusterShapes[shape];
  using L = std::conditional_t<kBackward,
                               DenseLayout<DenseBackward, Cell, s.units, s.blocks, s.tiles, rows>,
                               DenseLayout<DenseForward, Cell, s.units, s.blocks, s.tiles, rows>>;
  constexpr int kBytes = resets ? L::kResetsBytes : L::kSharedBytes;
  static_assert(kBytes <= kMostSharedBytes);
  PersistentKernel<Args> kernel = nullptr;
  if constexpr (kFromFormula<Cell>) {
  } else if constexpr (kBackward) {
    kernel = &cluster_dense_backward<Cell, T, s.units, s.blocks, s.tiles, rows, resets>;
  } else {
    kernel = &cluster_dense_forward<Cell, T, s.units, s.blocks, s.tiles, rows, resets>;
  }
  return {{shape, rows, resets}, kernel, L::kThreads, kBytes};
}

template <class Cell, class T, class Args, size_t... n>
constexpr auto dense_kernels(std::index_sequence<n...>) {
  constexpr auto ids = dense_ids<Cell, std::is_same_v<Args, PersistentBackward>>();
  return std::array<DenseKernel<Args>, sizeof...(n)>{
      dense_kernel<Cell, T, Args, ids[n].shape, ids[n].tile_rows, ids[n].resets>()...};
}

template <class Cell, class T, class Args>
cudaError_t run_dense(const Args* args, const ClusterCall& call) {
  constexpr bool kBackward = std::is_same_v<Args, PersistentBackward>;
  static const auto all =
      dense_kernels<Cell, T, Args>(std::make_index_sequence<dense_count<Cell, kBackward>()>{});
  for (const DenseKernel<Args>& one : all) {
    const ClusterShape& shape = kClusterShapes[one.id.shape];
    if (!(shape == call.plan.shape) || one.id.tile_rows != call.plan.tile_rows ||
        one.id.resets != call.plan.resets) {
      continue;
    }
    auto kernel = one.kernel;
    if constexpr (kFromFormula<Cell>) {
      kernel = formula::function<PersistentKernel<Args>, Cell, T>(
          kBackward ? "cluster_dense_backward" : "cluster_dense_forward", shape.units, shape.blocks,
          shape.tiles, one.id.tile_rows, one.id.resets);
    }
    return call(kernel, one.threads, static_cast<size_t>(one.bytes), args);
  }
  return cudaErrorInvalidValue;
}

template <class Kind>
cudaError_t run_cluster_dense(Dtype dtype, const PersistentForward* args, const ClusterCall& call) {
  using Cell = typename Kind::template HalfCell<float>;
  return dtype == Dtype::kHalf ? run_dense<Cell, Half>(args, call)
                               : run_dense<Cell, BFloat16>(args, call);
}

template <class Kind>
cudaError_t run_cluster_dense(Dtype dtype, const PersistentBackward* args,
                              const ClusterCall& call) {
  using Cell = typename Kind::template Cell<float>;
  return dtype == Dtype::kHalf ? run_dense<Cell, Half>(args, call)
                               : run_dense<Cell, BFloat16>(args, call);
}

}  // namespace treadle
