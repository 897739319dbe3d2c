// This kernel is compiled with the same flags as every other one, but never launched. It fails to
// assemble under --use_fast_math, for which nvcc (unlike NVRTC and the C++ compilers) defines no
// macro.
extern "C" __device__ int __nvvm_reflect(const char*);

namespace treadle {

__global__ void fast_math_check() {
  if (__nvvm_reflect("__CUDA_FTZ")) asm volatile("treadle_must_not_be_built_with_use_fast_math;");
}

}  // namespace treadle
