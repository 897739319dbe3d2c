// lltm_layer's regime "cluster", forward. Engine: kernels/cluster_forward.cuh.
#include "kernels/cluster_launch.cuh"
#include "kernels/lltm_persistent.h"
#include "kernels/math/lltm_recurrence.h"

namespace treadle {

static_assert(kAllFit<math::LltmRecurrenceOfHalves<float>::kGates>);  // plans take any

// In lltm_cluster_float.cu.
cudaError_t run_lltm_cluster_float(const PersistentForward* args, const ClusterCall& call);

cudaError_t run_lltm_cluster_forward(Dtype dtype, const PersistentForward* args,
                                     const ClusterCall& call) {
  using math::LltmRecurrenceOfHalves;
  if (dtype == Dtype::kFloat) return run_lltm_cluster_float(args, call);
  return dtype == Dtype::kHalf ? run_cluster_forward<LltmRecurrenceOfHalves, Half>(args, call)
                               : run_cluster_forward<LltmRecurrenceOfHalves, BFloat16>(args, call);
}

cudaError_t launch_lltm_cluster_forward(const PersistentForward& args, const ClusterPlan& plan,
                                        cudaStream_t stream) {
  return run_lltm_cluster_forward(args.sizes.dtype, &args, {plan, stream, nullptr});
}

}  // namespace treadle
