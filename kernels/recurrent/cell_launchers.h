// The functions of launchers.h for one cell, which `Kind` names (math::Lltm, cell_info.h). The
// folders of the algorithms define these, and kernels/recurrent/instances instantiates them.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/recurrent/fused_args.h"
#include "kernels/recurrent/persistent_args.h"
#include "kernels/recurrent/step_args.h"

namespace treadle {

template <class Kind>
cudaError_t launch_step_forward(const RecurrenceForward& args, cudaStream_t stream);
template <class Kind>
cudaError_t launch_step_backward(const RecurrenceBackward& args, cudaStream_t stream);

template <class Kind>
cudaError_t launch_warp_forward(const FusedForward& args, cudaStream_t stream);
template <class Kind>
cudaError_t launch_tiles_forward(const FusedForward& args, int processors, cudaStream_t stream);

template <class Kind>
cudaError_t launch_cluster_forward(const PersistentForward& args, const ClusterPlan& plan,
                                   cudaStream_t stream);
template <class Kind>
cudaError_t launch_cluster_backward(const PersistentBackward& args, const ClusterPlan& plan,
                                    cudaStream_t stream);
template <class Kind>
cudaError_t forward_clusters_at_once(Dtype dtype, const ClusterPlan& plan, int* count);
template <class Kind>
cudaError_t backward_clusters_at_once(Dtype dtype, const ClusterPlan& plan, int* count);

template <class Kind>
cudaError_t launch_grid_forward(const PersistentForward& args, int rows, cudaStream_t stream);
template <class Kind>
cudaError_t launch_grid_backward(const PersistentBackward& args, int rows, cudaStream_t stream);
template <class Kind>
cudaError_t grid_fits(bool backward, const PersistentSizes& sizes, int rows, bool* fits);

template <class Kind>
cudaError_t launch_c_states(const PersistentCStates& args, cudaStream_t stream);

}  // namespace treadle
