// What csrc/recurrent/cuda/layer.cpp calls: the kernels of a recurrent layer. `Kind` names the cell
// (math::Lltm, cell_info.h); definitions are in the *_launch.cuh, step.cuh and c_states.cuh, and
// kernels/recurrent/lltm/*.cu instantiate them.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/recurrent/persistent_args.h"
#include "kernels/recurrent/step_args.h"

namespace treadle {

// ---- step: the pointwise part of args.steps[0]; matrix products are cuBLAS's

template <class Kind>
cudaError_t launch_step_forward(const RecurrenceForward& args, cudaStream_t stream);
template <class Kind>
cudaError_t launch_step_backward(const RecurrenceBackward& args, cudaStream_t stream);

// ---- cluster: all steps in one launch. For sm_90 and later, as grid.

template <class Kind>
cudaError_t launch_cluster_forward(const PersistentForward& args, const ClusterPlan& plan,
                                   cudaStream_t stream);
template <class Kind>
cudaError_t launch_cluster_backward(const PersistentBackward& args, const ClusterPlan& plan,
                                    cudaStream_t stream);

// How many clusters of such a kernel the current device holds at once: 0 if it cannot run there.
template <class Kind>
cudaError_t forward_clusters_at_once(Dtype dtype, const ClusterPlan& plan, int* count);
template <class Kind>
cudaError_t backward_clusters_at_once(Dtype dtype, const ClusterPlan& plan, int* count);

// ---- grid: all blocks are resident, so many of them keep the weights of one direction

template <class Kind>
cudaError_t launch_grid_forward(const PersistentForward& args, int rows, cudaStream_t stream);
template <class Kind>
cudaError_t launch_grid_backward(const PersistentBackward& args, int rows, cudaStream_t stream);

// Whether all blocks of such a launch are resident on the current device at once.
template <class Kind>
cudaError_t grid_fits(bool backward, const PersistentSizes& sizes, int rows, bool* fits);

// Bytes of its workspace.
template <class Kind>
size_t grid_exchange_bytes(const PersistentSizes& sizes, int rows, bool backward);

// ---- for all of them

template <class Kind>
cudaError_t launch_c_states(const PersistentCStates& args, cudaStream_t stream);

// Uploads an int64 table in stream order through kernel parameters, so that it becomes part of a
// captured graph and the host's memory may be freed at once.
cudaError_t launch_upload_table(const int64_t* host, int64_t count, int64_t* device,
                                cudaStream_t stream);

}  // namespace treadle
