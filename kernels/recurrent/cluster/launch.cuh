// Launches the kernel that a cluster plan names, for any cell. Each kind of kernel has a launcher
// in its own header, and is instantiated in separate translation units. Defines the cluster
// functions of cell_launchers.h.
#pragma once

#include "kernels/recurrent/cell_launchers.h"
#include "kernels/recurrent/cluster/call.cuh"

namespace treadle {

// Half types, any batch: cluster/forward.cuh, cluster/backward.cuh.
template <class Kind>
cudaError_t run_cluster_any(Dtype dtype, const PersistentForward* args, const ClusterCall& call);
template <class Kind>
cudaError_t run_cluster_any(Dtype dtype, const PersistentBackward* args, const ClusterCall& call);

// Half types, dense batches: cluster/dense_forward.cuh, cluster/dense_backward.cuh.
template <class Kind>
cudaError_t run_cluster_dense(Dtype dtype, const PersistentForward* args, const ClusterCall& call);
template <class Kind>
cudaError_t run_cluster_dense(Dtype dtype, const PersistentBackward* args, const ClusterCall& call);

// Half types, shapes of one block: block/launch.cuh.
template <class Kind>
cudaError_t run_half_block(Dtype dtype, const PersistentForward* args, const ClusterCall& call);
template <class Kind>
cudaError_t run_half_block(Dtype dtype, const PersistentBackward* args, const ClusterCall& call);

// Float32, any batch, shapes of one block with them: cluster/fma_launch.cuh.
template <class Kind>
cudaError_t run_cluster_fp32(const PersistentForward* args, const ClusterCall& call);
template <class Kind>
cudaError_t run_cluster_fp32(const PersistentBackward* args, const ClusterCall& call);

// Float32, dense batches: cluster/fp16x2_forward.cuh.
template <class Kind>
cudaError_t run_cluster_split(const PersistentForward* args, const ClusterCall& call);

template <class Kind>
cudaError_t run_cluster(Dtype dtype, const PersistentForward* args, const ClusterCall& call) {
  if (dtype == Dtype::kFloat) {
    return call.plan.dense ? run_cluster_split<Kind>(args, call)
                           : run_cluster_fp32<Kind>(args, call);
  }
  if (call.plan.shape.blocks == 1) return run_half_block<Kind>(dtype, args, call);
  return call.plan.dense ? run_cluster_dense<Kind>(dtype, args, call)
                         : run_cluster_any<Kind>(dtype, args, call);
}

template <class Kind>
cudaError_t run_cluster(Dtype dtype, const PersistentBackward* args, const ClusterCall& call) {
  if (dtype == Dtype::kFloat) return run_cluster_fp32<Kind>(args, call);
  if (call.plan.shape.blocks == 1) return run_half_block<Kind>(dtype, args, call);
  return call.plan.dense ? run_cluster_dense<Kind>(dtype, args, call)
                         : run_cluster_any<Kind>(dtype, args, call);
}

template <class Kind>
cudaError_t launch_cluster_forward(const PersistentForward& args, const ClusterPlan& plan,
                                   cudaStream_t stream) {
  return run_cluster<Kind>(args.sizes.dtype, &args, {plan, stream, nullptr});
}

template <class Kind>
cudaError_t launch_cluster_backward(const PersistentBackward& args, const ClusterPlan& plan,
                                    cudaStream_t stream) {
  return run_cluster<Kind>(args.sizes.dtype, &args, {plan, stream, nullptr});
}

template <class Kind>
cudaError_t forward_clusters_at_once(Dtype dtype, const ClusterPlan& plan, int* count) {
  *count = 0;
  const PersistentForward* const none = nullptr;
  return run_cluster<Kind>(dtype, none, {plan, nullptr, count});
}

template <class Kind>
cudaError_t backward_clusters_at_once(Dtype dtype, const ClusterPlan& plan, int* count) {
  *count = 0;
  const PersistentBackward* const none = nullptr;
  return run_cluster<Kind>(dtype, none, {plan, nullptr, count});
}

}  // namespace treadle
