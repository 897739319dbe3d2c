#include <ATen/Functions.h>

#include <algorithm>

#include "recurrent/backend.h"

namespace treadle {

Sequence::Sequence(const Tensor& input, const Tensor& batch_sizes) {
  if (batch_sizes.defined()) {
    const auto sizes = batch_sizes.accessor<int64_t, 1>();
    steps.reserve(sizes.size(0));
    for (int64_t t = 0; t < sizes.size(0); ++t) {
      steps.push_back({rows, sizes[t]});
      rows += sizes[t];
    }
    return;
  }
  const int64_t count = input.size(0), batch = input.size(1);
  steps.reserve(count);
  for (int64_t t = 0; t < count; ++t) steps.push_back({t * batch, batch});
  rows = count * batch;
}

std::vector<RecurrenceStep> Sequence::in_order(int64_t d) const {
  return d == 0 ? steps : std::vector<RecurrenceStep>(steps.rbegin(), steps.rend());
}

Tensor Sequence::previous_h(const Tensor& h0, const Tensor& output, int64_t d) const {
  std::vector<Tensor> parts;
  // Rows begin .. end of output: one part as long as they are adjacent.
  int64_t begin = 0, end = 0;
  const auto flush = [&] {
    if (end > begin) parts.push_back(output.narrow(0, begin, end - begin));
    begin = end = 0;
  };
  const auto take_output = [&](int64_t start, int64_t count) {
    if (count == 0) return;
    if (start != end || begin == end) {
      flush();
      begin = start;
    }
    end = start + count;
  };
  const auto take_h0 = [&](int64_t start, int64_t count) {
    if (count == 0) return;
    flush();
    parts.push_back(h0.narrow(0, start, count));
  };
  const auto count = static_cast<int64_t>(steps.size());
  for (int64_t t = 0; t < count; ++t) {
    const int64_t from = d == 0 ? t - 1 : t + 1;
    const bool any = from >= 0 && from < count;
    const int64_t known = any ? std::min(steps[from].rows, steps[t].rows) : 0;
    if (any) take_output(steps[from].start, known);
    take_h0(known, steps[t].rows - known);
  }
  flush();
  return parts.empty() ? output.narrow(0, 0, 0) : at::cat(parts);
}

}  // namespace treadle
