// wgmma on shared memory in tiles of 32 to 256 columns. wgmma.cuh has a product of 128 columns that
// also accepts transposed operands.
#pragma once

#include "kernels/common/wgmma.cuh"

namespace treadle::ptx {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define TREADLE_FOUR(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define TREADLE_SUMS(i)                                                              \
  TREADLE_FOUR(first + i), TREADLE_FOUR(first + i + 4), TREADLE_FOUR(first + i + 8), \
      TREADLE_FOUR(first + i + 12)
#define TREADLE_SUMS_16 TREADLE_SUMS(0)
#define TREADLE_SUMS_32 TREADLE_SUMS_16, TREADLE_SUMS(16)
#define TREADLE_SUMS_48 TREADLE_SUMS_32, TREADLE_SUMS(32)
#define TREADLE_SUMS_64 TREADLE_SUMS_48, TREADLE_SUMS(48)
#define TREADLE_SUMS_96 TREADLE_SUMS_64, TREADLE_SUMS(64), TREADLE_SUMS(80)
#define TREADLE_SUMS_128 TREADLE_SUMS_96, TREADLE_SUMS(96), TREADLE_SUMS(112)
#define TREADLE_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TREADLE_NAMES_32 \
  TREADLE_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TREADLE_NAMES_48 \
  TREADLE_NAMES_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TREADLE_NAMES_64 \
  TREADLE_NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TREADLE_NAMES_96                                                          \
  TREADLE_NAMES_64                                                                \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
  "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, "   \
  "%94, %95"
#define TREADLE_NAMES_128                                                          \
  TREADLE_NAMES_96                                                                 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, "   \
  "%109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, " \
  "%122, %123, %124, %125, %126, %127"
#define TREADLE_PRODUCT(columns, kind, turns, names, a_at, b_at, add_at, ...)         \
  asm volatile(                                                                       \
      "{\n"                                                                           \
      ".reg .pred add;\n"                                                             \
      "setp.ne.b32 add, " add_at                                                      \
      ", 0;\n"                                                                        \
      "wgmma.mma_async.sync.aligned.m64" columns kind " {" names "}, " a_at ", " b_at \
      ", add, 1, 1" turns                                                             \
      ";\n"                                                                           \
      "}"                                                                             \
      : __VA_ARGS__                                                                   \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define TREADLE_PRODUCT_OF(columns, names, a_at, b_at, add_at, ...)                                \
  if constexpr (std::is_same_v<T, float>) {                                                        \
    TREADLE_PRODUCT(columns, "k8.f32.tf32.tf32", "", names, a_at, b_at, add_at, __VA_ARGS__);      \
  } else if constexpr (std::is_same_v<T, BFloat16>) {                                              \
    TREADLE_PRODUCT(columns, "k16.f32.bf16.bf16", ", 0, 0", names, a_at, b_at, add_at,             \
                    __VA_ARGS__);                                                                  \
  } else {                                                                                         \
    TREADLE_PRODUCT(columns, "k16.f32.f16.f16", ", 0, 0", names, a_at, b_at, add_at, __VA_ARGS__); \
  }

// A warpgroup computes c = a [64, k] b [columns, k]^T, plus the old c if `add`. a and b are
// descriptors made by matrix(). The k elements of a row take 32 bytes. float operands are read as
// tf32. Thread t has rows r and r + 8, where r = 16 (t / 32) + t % 32 / 4, of columns
// n = 8 j + 2 (t % 4) and n + 1, for j < columns / 8. Row r is in c[i] and c[i + 1], and row r + 8
// in c[i + 2] and c[i + 3], where i is first + 4 j.
template <class T, int columns, int first, int registers>
__device__ __forceinline__ void multiply_columns(float (&c)[registers], uint64_t a, uint64_t b,
                                                 bool add = true) {
  static_assert(first + columns / 2 <= registers);
  if constexpr (columns == 32) {
    TREADLE_PRODUCT_OF("n32", TREADLE_NAMES_16, "%16", "%17", "%18", TREADLE_SUMS_16)
  } else if constexpr (columns == 64) {
    TREADLE_PRODUCT_OF("n64", TREADLE_NAMES_32, "%32", "%33", "%34", TREADLE_SUMS_32)
  } else if constexpr (columns == 96) {
    TREADLE_PRODUCT_OF("n96", TREADLE_NAMES_48, "%48", "%49", "%50", TREADLE_SUMS_48)
  } else if constexpr (columns == 128) {
    TREADLE_PRODUCT_OF("n128", TREADLE_NAMES_64, "%64", "%65", "%66", TREADLE_SUMS_64)
  } else if constexpr (columns == 192) {
    TREADLE_PRODUCT_OF("n192", TREADLE_NAMES_96, "%96", "%97", "%98", TREADLE_SUMS_96)
  } else {
    static_assert(columns == 256);
    TREADLE_PRODUCT_OF("n256", TREADLE_NAMES_128, "%128", "%129", "%130", TREADLE_SUMS_128)
  }
}

#undef TREADLE_FOUR
#undef TREADLE_SUMS
#undef TREADLE_SUMS_16
#undef TREADLE_SUMS_32
#undef TREADLE_SUMS_48
#undef TREADLE_SUMS_64
#undef TREADLE_SUMS_96
#undef TREADLE_SUMS_128
#undef TREADLE_NAMES_16
#undef TREADLE_NAMES_32
#undef TREADLE_NAMES_48
#undef TREADLE_NAMES_64
#undef TREADLE_NAMES_96
#undef TREADLE_NAMES_128
#undef TREADLE_PRODUCT
#undef TREADLE_PRODUCT_OF

#endif

}  // namespace treadle::ptx
