// Reads half-type numbers as a thread of kernels/recurrent/block/forward.cuh does, from words that
// were copied some steps earlier. The value of each number is its position in memory. Prints the
// errors.
#include "kernels/recurrent/block/word_halves.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

using treadle::word_of;
using treadle::WordHalves;

namespace {

constexpr int kAhead = 7, kStages = 8;

struct Case {
  // `row`, `apart` and `first` are distances in elements: between rows, between gates, and from the
  // start of a word to the first row.
  int steps, batch, gates, row, apart, first;
  bool packed, backward;

  // In a packed batch every second step has one row fewer.
  int rows_of(int t) const {
    const int ended = packed ? t / 2 : 0;
    return ended < batch ? batch - ended : 0;
  }
};

// Reads all gates of row b's unit 0 at all steps; returns the number of errors.
int read(const Case& c, int b) {
  std::vector<int> starts{0};
  for (int t = 0; t < c.steps; ++t) starts.push_back(starts.back() + c.rows_of(t));
  const int count = c.first + (starts.back() + c.batch) * c.row + c.gates * c.apart;
  std::vector<uint32_t> words(count / 2 + 2);
  auto* const data = reinterpret_cast<uint16_t*>(words.data());
  for (int i = 0; i < count; ++i) data[i] = static_cast<uint16_t>(i);

  const auto time = [&](int s) { return c.backward ? c.steps - 1 - s : s; };
  const auto runs = [&](int s) { return s < c.steps && b < c.rows_of(time(s)); };
  const auto* at = data + c.first + (starts[time(0)] + b) * c.row;
  WordHalves<kAhead> halves;
  std::vector<std::vector<uint32_t>> stages(kStages, std::vector<uint32_t>(c.gates));
  const auto fetch = [&](int s) {
    for (int m = 0; m < c.gates && runs(s); ++m) {
      const auto from = word_of(reinterpret_cast<uintptr_t>(at + m * c.apart));
      std::memcpy(&stages[s % kStages][m], reinterpret_cast<const void*>(from), 4);
    }
    halves.note(reinterpret_cast<uintptr_t>(at));
    if (s + 1 < c.steps) at += (starts[time(s + 1)] - starts[time(s)]) * c.row;
  };
  int wrong = 0;
  for (int s = 0; s < kAhead; ++s) fetch(s);
  for (int s = 0; s < c.steps; ++s) {
    for (int m = 0; m < c.gates && runs(s); ++m) {
      uint16_t found[2];
      std::memcpy(found, &stages[s % kStages][m], 4);
      const int expected = c.first + (starts[time(s)] + b) * c.row + m * c.apart;
      wrong += found[halves.of_oldest(m, c.apart)] != static_cast<uint16_t>(expected);
    }
    fetch(s + kAhead);
  }
  return wrong;
}

}  // namespace

int main() {
  int wrong = 0, cases = 0;
  for (int bits = 0; bits < 1 << 6; ++bits) {
    const auto bit = [&](int i) { return (bits >> i & 1) != 0; };
    for (int apart : {1, 2, 31, 64}) {
      for (int steps : {1, 6, 7, 8, 40}) {
        for (int batch : {1, 2, 5}) {
          const int gates = bit(0) ? 3 : 4, row = gates * apart + bit(1) + 2 * bit(2);
          const Case c{steps, batch, gates, row, apart, bit(3), bit(4), bit(5)};
          for (int b = 0; b < batch; ++b) {
            const int mistakes = read(c, b);
            ++cases;
            if (mistakes == 0 || wrong++ > 4) continue;
            std::printf("%d wrong: steps %d batch %d gates %d row %d apart %d first %d%s%s b %d\n",
                        mistakes, steps, batch, gates, row, apart, c.first,
                        c.packed ? " packed" : "", c.backward ? " backward" : "", b);
          }
        }
      }
    }
  }
  std::printf("%d cases, %d wrong\n", cases, wrong);
  return wrong == 0 ? 0 : 1;
}
