// Vectors of elements, and constants as types.
#pragma once

namespace treadle {

// n elements, read and written in accesses of up to 16 bytes.
template <class T, int n>
struct alignas(sizeof(T) * n < 16 ? sizeof(T) * n : 16) Vector {
  T value[n];
};

template <class T, T v>
struct Constant {
  static constexpr T value = v;
};

}  // namespace treadle
