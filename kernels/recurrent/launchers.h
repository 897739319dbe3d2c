// A recurrent layer's kernels on CUDA, as csrc/recurrent/cuda/layer.cpp calls them: for the cell
// that the arguments name. launchers.cu finds the cell's instance.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/common/exported.h"
#include "kernels/recurrent/fused_args.h"
#include "kernels/recurrent/gradients/gradients_args.h"
#include "kernels/recurrent/persistent_args.h"
#include "kernels/recurrent/scan/affine_scan.h"
#include "kernels/recurrent/step_args.h"

namespace treadle {

struct RecurrenceDevice;

// Describes the GPU of this index for the planner (plan/plan.h), or the one that
// TREADLE_IMPOSED_GPU names.
cudaError_t describe_device(int index, RecurrenceDevice* device) TREADLE_EXPORTED(describe_device);

// ---- step: the pointwise part of args.steps[0]; cuBLAS computes matrix products

cudaError_t launch_step_forward(const RecurrenceForward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_step_forward);
cudaError_t launch_step_backward(const RecurrenceBackward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_step_backward);

// ---- warp: each of args.layer.steps in one launch. Bases are multiples of 16 bytes and rows of
// the input of 4 elements, if H and I are.

cudaError_t launch_warp_forward(const FusedForward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_warp_forward);

// ---- tiles: the same, on this many multiprocessors. Only for sm_90, half types, and float32
// rounded to tf32. Bases, rows of the input and of weights are multiples of 16 bytes.

cudaError_t launch_tiles_forward(const FusedForward& args, int processors, cudaStream_t stream)
    TREADLE_EXPORTED(launch_tiles_forward);

// Whether the library has code for them, and the driver supports them.
bool tiles_supported() TREADLE_EXPORTED(tiles_supported);

// ---- cluster: all steps in one launch. For sm_90 and later; those of one block, and grid, for
// sm_80 and later.

cudaError_t launch_cluster_forward(const PersistentForward& args, const ClusterPlan& plan,
                                   cudaStream_t stream) TREADLE_EXPORTED(launch_cluster_forward);
cudaError_t launch_cluster_backward(const PersistentBackward& args, const ClusterPlan& plan,
                                    cudaStream_t stream) TREADLE_EXPORTED(launch_cluster_backward);

// The number of clusters of the plan's kernel that can be resident on the current device: 0 if it
// cannot run there.
cudaError_t clusters_at_once(CellKind cell, Dtype dtype, bool backward, const ClusterPlan& plan,
                             int* count) TREADLE_EXPORTED(clusters_at_once);

// ---- grid: all blocks are resident, and a group of them keeps the weights of one direction

cudaError_t launch_grid_forward(const PersistentForward& args, int rows, cudaStream_t stream)
    TREADLE_EXPORTED(launch_grid_forward);
cudaError_t launch_grid_backward(const PersistentBackward& args, int rows, cudaStream_t stream)
    TREADLE_EXPORTED(launch_grid_backward);

// Whether all blocks of such a launch can be resident on the current device.
cudaError_t grid_fits(bool backward, const PersistentSizes& sizes, int rows, bool* fits)
    TREADLE_EXPORTED(grid_fits);

// Bytes of its workspace.
size_t grid_exchange_bytes(const PersistentSizes& sizes, int rows, bool backward)
    TREADLE_EXPORTED(grid_exchange_bytes);

// ---- for all of them

cudaError_t launch_c_states(const PersistentCStates& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_c_states);

// For any cell, between the products after a backward pass. Sums of many rows are faster if several
// blocks share them, as in torch.
cudaError_t launch_previous_h(const PreviousH& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_previous_h);
cudaError_t launch_pad_rows(const PadRows& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_pad_rows);
cudaError_t launch_bias_sums(const BiasSums& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_bias_sums);

// For any cell, in float or double; see csrc/recurrent/run/affine_scan.h.
cudaError_t launch_affine_scan(const AffineScan& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_affine_scan);

// Uploads an int64 table in stream order through kernel parameters, so that it becomes part of a
// captured graph and the host's memory may be freed immediately.
cudaError_t launch_upload_table(const int64_t* host, int64_t count, int64_t* device,
                                cudaStream_t stream) TREADLE_EXPORTED(launch_upload_table);

}  // namespace treadle
