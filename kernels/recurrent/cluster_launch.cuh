// Which kernel of the regime "cluster" a plan names, for any cell. Of kClusterShapes' half types,
// those are compiled that a block has the memory for: with more gates than LLTM's, the widest have
// to go.
#pragma once

#include <utility>

#include "kernels/cluster_backward.cuh"
#include "kernels/cluster_forward.cuh"

namespace treadle {

constexpr bool operator==(const ClusterShape& a, const ClusterShape& b) {
  return a.units == b.units && a.blocks == b.blocks && a.tiles == b.tiles;
}

inline constexpr size_t kShapes = sizeof(kClusterShapes) / sizeof(kClusterShapes[0]);
inline constexpr int kMostSharedBytes = 227 * 1024;  // of a block

template <int gates, size_t i>
constexpr bool fits_forward() {
  constexpr ClusterShape s = kClusterShapes[i];
  if constexpr (!s.has_half()) {
    return false;
  } else {
    return ClusterForward<gates, s.units, s.blocks, s.tiles>::kSharedBytes <= kMostSharedBytes;
  }
}

template <int gates, size_t i>
constexpr bool fits_backward() {
  constexpr ClusterShape s = kClusterShapes[i];
  if constexpr (!s.has_half()) {
    return false;
  } else {
    return ClusterBackward<gates, s.units, s.blocks>::kSharedBytes <= kMostSharedBytes;
  }
}

// Whether none is left out.
template <int gates, size_t... i>
constexpr bool all_fit(std::index_sequence<i...>) {
  return (
      (!kClusterShapes[i].has_half() || (fits_forward<gates, i>() && fits_backward<gates, i>())) &&
      ...);
}

template <int gates>
inline constexpr bool kAllFit = all_fit<gates>(std::make_index_sequence<kShapes>{});

// Calls f(Constant<size_t, i>) for the i of `shape` in kClusterShapes.
template <size_t i = 0, class F>
cudaError_t visit_shape(const ClusterShape& shape, const F& f) {
  if constexpr (i == kShapes) {
    return cudaErrorInvalidValue;
  } else {
    return kClusterShapes[i] == shape ? f(Constant<size_t, i>{}) : visit_shape<i + 1>(shape, f);
  }
}

// A kernel that is to run, or to be asked how many of its clusters run at once.
struct ClusterCall {
  const ClusterPlan& plan;
  cudaStream_t stream;
  int* at_once;  // none: run

  template <class Args>
  cudaError_t operator()(void (*kernel)(Args, int), int threads, size_t shared_bytes,
                         const Args* args) const {
    const int cluster = plan.shape.blocks;
    LaunchShape shape = {
        static_cast<unsigned>(cluster), 1, 1, static_cast<unsigned>(threads), shared_bytes, 8, 1};
    cudaError_t error = allow_clusters(kernel, shared_bytes);
    if (at_once != nullptr && too_large(error)) return cudaSuccess;
    if (error != cudaSuccess) return error;
    if (at_once != nullptr) {
      bool compiled = false;
      error = has_code_for_90(kernel, &compiled);
      if (error != cudaSuccess || !compiled) return error;
      cudaLaunchAttribute attribute = cluster_launch(cluster);
      const cudaLaunchConfig_t config = launch_config(shape, attribute);
      return cudaOccupancyMaxActiveClusters(at_once, kernel, &config);
    }
    const PersistentSizes& sizes = args->sizes;
    shape.grid_x *=
        static_cast<unsigned>(ceil_div(sizes.row_count, int64_t{plan.rows}) * sizes.directions);
    shape.elements_per_thread = static_cast<int>(sizes.steps);
    return launch_with(kernel, shape, stream, cluster_launch(cluster), *args, plan.rows);
  }
};

template <template <class> class CellOf, class T>
cudaError_t run_cluster_forward(const PersistentForward* args, const ClusterCall& call) {
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr int kGates = CellOf<float>::kGates;
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (!fits_forward<kGates, decltype(index)::value>()) {
      return cudaErrorInvalidValue;
    } else {
      using Is = ClusterForward<kGates, s.units, s.blocks, s.tiles>;
      return call(cluster_forward<CellOf, T, s.units, s.blocks, s.tiles>, Is::kThreads,
                  Is::kSharedBytes, args);
    }
  });
}

template <template <class> class CellOf, class T>
cudaError_t run_cluster_backward(const PersistentBackward* args, const ClusterCall& call) {
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr int kGates = CellOf<float>::kGates;
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (s.tiles > 1 || !fits_backward<kGates, decltype(index)::value>()) {
      return cudaErrorInvalidValue;
    } else {
      using Is = ClusterBackward<kGates, s.units, s.blocks>;
      return call(cluster_backward<CellOf, T, s.units, s.blocks>, Is::kThreads, Is::kSharedBytes,
                  args);
    }
  });
}

}  // namespace treadle
