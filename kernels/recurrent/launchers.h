// Launches a recurrent layer's kernels on CUDA, for csrc/recurrent/cuda/layer.cpp. The arguments
// specify the cell; launchers.cu calls the launchers that are compiled for this cell.
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
struct RecurrencePlan;

// Describes the GPU of this index, or the one that TREADLE_IMPOSED_GPU specifies, for the planner
// (plan/plan.h).
cudaError_t describe_device(int index, RecurrenceDevice* device) TREADLE_EXPORTED(describe_device);

// ---- step: the pointwise part of args.steps[0]; cuBLAS computes matrix products

cudaError_t launch_step_forward(const RecurrenceForward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_step_forward);
cudaError_t launch_step_backward(const RecurrenceBackward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_step_backward);

// ---- warp: one launch for each of args.layer.steps. If H and the number of inputs are multiples
// of 4, the addresses of arrays must be multiples of 16 bytes, and the distance between rows of the
// input a multiple of 4 elements.

cudaError_t launch_warp_forward(const FusedForward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_warp_forward);

// ---- tiles: one launch for each step, on `processors` multiprocessors. This is only for sm_90,
// with half types or with float32 rounded to tf32. The addresses of arrays, and the distances
// between rows of the input and of weights, must be multiples of 16 bytes.

cudaError_t launch_tiles_forward(const FusedForward& args, int processors, cudaStream_t stream)
    TREADLE_EXPORTED(launch_tiles_forward);

// Whether the library has code for tiles and the driver can encode tensor maps.
bool tiles_supported() TREADLE_EXPORTED(tiles_supported);

// ---- cluster and grid: all steps in one launch of the kernel that the plan selects. Clusters need
// sm_90 or later; a single block and grid need sm_80 or later. run.h calls these functions.

cudaError_t launch_persistent_forward(const PersistentForward& args, const RecurrencePlan& plan,
                                      cudaStream_t stream)
    TREADLE_EXPORTED(launch_persistent_forward);
cudaError_t launch_persistent_backward(const PersistentBackward& args, const RecurrencePlan& plan,
                                       cudaStream_t stream)
    TREADLE_EXPORTED(launch_persistent_backward);

// Sets *fits to whether the plan's kernel fits on the current device, or on the part of it that
// this process may use: one cluster, or all blocks of the grid at once.
cudaError_t persistent_fits(bool backward, const PersistentSizes& sizes, const RecurrencePlan& plan,
                            bool* fits) TREADLE_EXPORTED(persistent_fits);

// ---- for all algorithms

cudaError_t launch_c_states(const PersistentCStates& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_c_states);

// The kernels of gradients.cu, for any cell. launch_bias_sums is for few rows. With many rows
// torch's sum is faster, because there several blocks add the elements of one column.
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
