// lltm_layer in one launch on CUDA, as csrc/cuda/lltm_layer.cpp calls it. For sm_90 and later.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/persistent_args.h"

namespace treadle {

cudaError_t launch_lltm_cluster_forward(const PersistentForward& args, const ClusterPlan& plan,
                                        cudaStream_t stream);
cudaError_t launch_lltm_cluster_backward(const PersistentBackward& args, const ClusterPlan& plan,
                                         cudaStream_t stream);

// How many clusters of such a kernel the current device holds at once: 0 if it cannot run there.
cudaError_t lltm_clusters_at_once(bool backward, Dtype dtype, const ClusterPlan& plan, int* count);

// The regime "grid": all blocks are resident, so many of them keep the weights of one direction.
cudaError_t launch_lltm_grid_forward(const PersistentForward& args, int rows, cudaStream_t stream);
cudaError_t launch_lltm_grid_backward(const PersistentBackward& args, int rows,
                                      cudaStream_t stream);

// Whether all blocks of such a launch are resident on the current device at once.
cudaError_t lltm_grid_fits(bool backward, const PersistentSizes& sizes, int rows, bool* fits);

// Of its workspace.
size_t lltm_grid_exchange_bytes(const PersistentSizes& sizes, int rows, bool backward);

cudaError_t launch_lltm_cells(const PersistentCells& args, cudaStream_t stream);

// Writes a table to the device in the order of the stream, by the parameters of kernels: it is part
// of a captured graph, and the host's memory may be gone.
cudaError_t launch_write_table(const int64_t* host, int64_t count, int64_t* device,
                               cudaStream_t stream);

}  // namespace treadle
