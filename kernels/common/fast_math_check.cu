// Makes a build with --use_fast_math fail. This kernel is compiled with the same flags as every
// other kernel, and fails to assemble with that flag. It is never launched. A check by the
// preprocessor is not possible, because nvcc (unlike NVRTC and the C++ compilers) defines no macro
// for the flag.
extern "C" __device__ int __nvvm_reflect(const char*);

namespace treadle {

__global__ void fast_math_check() {
  if (__nvvm_reflect("__CUDA_FTZ")) asm volatile("treadle_must_not_be_built_with_use_fast_math;");
}

}  // namespace treadle
