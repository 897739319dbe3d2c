// A recurrent layer of kernels.h whose arguments have been checked. The code for the CPU and the
// code for CUDA share this header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/c_api/status.h"
#include "kernels/recurrent/plan/plan.h"
#include "treadle/kernels.h"

namespace treadle {

struct CLayer {
  const treadle_device& device;
  RecurrenceSizes sizes;
  const CellInfo& cell;
  Dtype c_dtype;

  // Checks the arguments. Raises for a layer that no function below supports.
  static CLayer checked(const treadle_device* device, const treadle_recurrent* layer);

  int64_t rows() const { return sizes.steps * sizes.batch; }    // S
  int64_t width() const { return cell.gates * sizes.hidden; }   // GH
  int64_t units() const { return sizes.batch * sizes.hidden; }  // of one direction's state
};

struct CForward {
  const treadle_recurrent_inputs& in;
  const treadle_recurrent_outputs& out;
  void* workspace;
};

struct CBackward {
  const treadle_recurrent_saved& in;
  const treadle_recurrent_grads& out;
  void* workspace;
};

// ---- CPU

size_t workspace_on_cpu(const CLayer& layer);
void forward_on_cpu(const CLayer& layer, const CForward& call);
void backward_on_cpu(const CLayer& layer, const CBackward& call);

// ---- CUDA; a build without CUDA never calls these

size_t workspace_on_cuda(const CLayer& layer, bool backward);
void forward_on_cuda(const CLayer& layer, const CForward& call);
void backward_on_cuda(const CLayer& layer, const CBackward& call);

}  // namespace treadle
