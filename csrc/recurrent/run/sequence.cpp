#include <ATen/Functions.h>

#include <algorithm>

#include "common/tensors.h"
#include "recurrent/run/backend.h"

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

std::vector<RecurrenceStep> Sequence::in_order(int64_t d, bool reversed) const {
  std::vector<RecurrenceStep> found = steps;
  for (size_t t = 0; t < found.size(); ++t) {
    // Direction 1 runs backward in time, so it resets before step t where step t + 1 has a mark.
    // Nothing resets before its first step, the last in time.
    const size_t at = d == 0 ? t : t + 1;
    if (at == found.size()) continue;
    found[t].marks = steps[at].start;
    found[t].marked_rows = steps[at].rows;
  }
  if ((d == 1) != reversed) std::reverse(found.begin(), found.end());
  found.push_back({rows, 0});
  return found;
}

Tensor Sequence::previous_h(const Tensor& h0, const Tensor& output, int64_t d) const {
  std::vector<Tensor> parts;
  // Adjacent rows of output become one part; `begin` and `end` delimit the current one.
  int64_t begin = 0, end = 0;
  const auto flush = [&] {
    if (end > begin) parts.push_back(part(output, 0, begin, end - begin));
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
    parts.push_back(part(h0, 0, start, count));
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

Tensor Sequence::marks_before(const Tensor& marks, int64_t d) const {
  if (d == 0) return marks;
  const Tensor found = at::zeros_like(marks);
  if (steps.empty()) return found;
  // If every step has all rows, a single copy is enough.
  const int64_t first = steps[0].rows, others = rows - first;
  if (rows == static_cast<int64_t>(steps.size()) * first) {
    found.narrow(0, 0, others).copy_(marks.narrow(0, first, others));
    return found;
  }
  for (size_t t = 0; t + 1 < steps.size(); ++t) {
    const RecurrenceStep& next = steps[t + 1];
    found.narrow(0, steps[t].start, next.rows).copy_(marks.narrow(0, next.start, next.rows));
  }
  return found;
}

Tensor Sequence::each_step(const Tensor& batch) const {
  const auto count = static_cast<int64_t>(steps.size());
  if (rows == count * batch.size(0)) return batch.repeat({count, 1});
  std::vector<Tensor> parts;
  for (const auto& step : steps) parts.push_back(batch.narrow(0, 0, step.rows));
  return at::cat(parts);
}

Tensor Sequence::sum_of_steps(const Tensor& places, int64_t batch) const {
  const auto count = static_cast<int64_t>(steps.size());
  if (rows == count * batch) {
    return places.view({places.size(0), count, batch, places.size(2)}).sum(1);
  }
  Tensor found = at::zeros({places.size(0), batch, places.size(2)}, places.options());
  for (const auto& step : steps) {
    found.narrow(1, 0, step.rows).add_(places.narrow(1, step.start, step.rows));
  }
  return found;
}

}  // namespace treadle
