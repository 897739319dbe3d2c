// wgmma for half types in tiles [64, 64 n], n three or four: wgmma.cuh has those of 128 columns.
#pragma once

#include "kernels/common/wgmma.cuh"

namespace treadle::ptx {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define TREADLE_EIGHT(i)                                                                      \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define TREADLE_GROUP(i)                                            \
  TREADLE_EIGHT(32 * first + i), TREADLE_EIGHT(32 * first + i + 8), \
      TREADLE_EIGHT(32 * first + i + 16), TREADLE_EIGHT(32 * first + i + 24)
#define TREADLE_NAMES_0                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "           \
  "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TREADLE_NAMES_1                                     \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, " \
  "%43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TREADLE_NAMES_2                                     \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, " \
  "%75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TREADLE_NAMES_3                                                \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, "     \
  "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, " \
  "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TREADLE_PRODUCT(columns, types, names, a_at, b_at, ...)              \
  asm volatile(                                                              \
      "{\n"                                                                  \
      ".reg .pred add;\n"                                                    \
      "setp.eq.b32 add, 0, 0;\n"                                             \
      "wgmma.mma_async.sync.aligned.m64" columns "k16.f32." types " {" names \
      "}"                                                                    \
      ", " a_at ", " b_at                                                    \
      ", add, 1, 1, 0, 0;\n"                                                 \
      "}"                                                                    \
      : __VA_ARGS__                                                          \
      : "l"(a), "l"(b))
#define TREADLE_PRODUCT_OF_HALVES(columns, names, a_at, b_at, ...)         \
  if constexpr (std::is_same_v<T, BFloat16>) {                             \
    TREADLE_PRODUCT(columns, "bf16.bf16", names, a_at, b_at, __VA_ARGS__); \
  } else {                                                                 \
    TREADLE_PRODUCT(columns, "f16.f16", names, a_at, b_at, __VA_ARGS__);   \
  }

// c += a [64, 16] b [64 groups, 16]^T, by a warpgroup, of matrix()s, into the groups of c from
// `first` on. Thread t holds, for rows r = 16 (t / 32) + t % 32 / 4 and r + 8, j < 8 and each group
// g, columns 64 g + 8 j + 2 (t % 4) and the next: c[32 g + 4 j] and the next of row r, c[32 g + 4 j
// + 2] and the next of row r + 8.
template <class T, int groups, int first, int registers>
__device__ __forceinline__ void multiply_groups(float (&c)[registers], uint64_t a, uint64_t b) {
  static_assert(groups >= 3 && groups <= 4 && 32 * (first + groups) <= registers);
  if constexpr (groups == 3) {
    TREADLE_PRODUCT_OF_HALVES("n192", TREADLE_NAMES_0 ", " TREADLE_NAMES_1 ", " TREADLE_NAMES_2,
                              "%96", "%97", TREADLE_GROUP(0), TREADLE_GROUP(32), TREADLE_GROUP(64))
  } else {
    TREADLE_PRODUCT_OF_HALVES(
        "n256", TREADLE_NAMES_0 ", " TREADLE_NAMES_1 ", " TREADLE_NAMES_2 ", " TREADLE_NAMES_3,
        "%128", "%129", TREADLE_GROUP(0), TREADLE_GROUP(32), TREADLE_GROUP(64), TREADLE_GROUP(96))
  }
}

#undef TREADLE_EIGHT
#undef TREADLE_GROUP
#undef TREADLE_NAMES_0
#undef TREADLE_NAMES_1
#undef TREADLE_NAMES_2
#undef TREADLE_NAMES_3
#undef TREADLE_PRODUCT
#undef TREADLE_PRODUCT_OF_HALVES

#endif

}  // namespace treadle::ptx
