// lltm_layer's regime "cluster", backward. Engine: kernels/cluster_backward.cuh.
#include "kernels/cluster_launch.cuh"
#include "kernels/lltm_persistent.h"
#include "kernels/math/lltm_recurrence.h"

namespace treadle {

static_assert(kAllFit<math::LltmRecurrence<float>::kGates>);  // plans take any

// In lltm_cluster_float.cu.
cudaError_t run_lltm_cluster_float(const PersistentBackward* args, const ClusterCall& call);

static cudaError_t run(Dtype dtype, const PersistentBackward* args, const ClusterCall& call) {
  using math::LltmRecurrence;
  if (dtype == Dtype::kFloat) return run_lltm_cluster_float(args, call);
  return dtype == Dtype::kHalf ? run_cluster_backward<LltmRecurrence, Half>(args, call)
                               : run_cluster_backward<LltmRecurrence, BFloat16>(args, call);
}

cudaError_t launch_lltm_cluster_backward(const PersistentBackward& args, const ClusterPlan& plan,
                                         cudaStream_t stream) {
  return run(args.sizes.dtype, &args, {plan, stream, nullptr});
}

// In lltm_cluster_forward.cu.
cudaError_t run_lltm_cluster_forward(Dtype dtype, const PersistentForward* args,
                                     const ClusterCall& call);

cudaError_t lltm_clusters_at_once(bool backward, Dtype dtype, const ClusterPlan& plan, int* count) {
  *count = 0;
  const ClusterCall call = {plan, nullptr, count};
  return backward ? run(dtype, nullptr, call) : run_lltm_cluster_forward(dtype, nullptr, call);
}

}  // namespace treadle
