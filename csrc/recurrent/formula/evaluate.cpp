#include "recurrent/formula/evaluate.h"

#include <ATen/Functions.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <unordered_map>

namespace treadle {
namespace {

using Values = std::vector<Tensor>;

Tensor compared(const Tensor& flags, const Tensor& like) { return flags.to(like.scalar_type()); }

Tensor compute(const std::string& op, const Values& x) {
  using Function = Tensor (*)(const Values&);
  // The twin of kernels/recurrent/formula/functors.h.
  static const std::unordered_map<std::string, Function> functions = {
      {"add", [](const Values& x) { return x[0] + x[1]; }},
      {"sub", [](const Values& x) { return x[0] - x[1]; }},
      {"mul", [](const Values& x) { return x[0] * x[1]; }},
      {"div", [](const Values& x) { return x[0] / x[1]; }},
      {"neg", [](const Values& x) { return at::neg(x[0]); }},
      {"sigmoid", [](const Values& x) { return at::sigmoid(x[0]); }},
      {"tanh", [](const Values& x) { return at::tanh(x[0]); }},
      {"tanh_slope", [](const Values& x) { return 1 - at::square(at::tanh(x[0])); }},
      {"exp", [](const Values& x) { return at::exp(x[0]); }},
      {"expm1", [](const Values& x) { return at::expm1(x[0]); }},
      {"log", [](const Values& x) { return at::log(x[0]); }},
      {"log1p", [](const Values& x) { return at::log1p(x[0]); }},
      {"sqrt", [](const Values& x) { return at::sqrt(x[0]); }},
      {"sin", [](const Values& x) { return at::sin(x[0]); }},
      {"cos", [](const Values& x) { return at::cos(x[0]); }},
      {"erf", [](const Values& x) { return at::erf(x[0]); }},
      {"abs", [](const Values& x) { return at::abs(x[0]); }},
      {"gt", [](const Values& x) { return compared(x[0] > x[1], x[0]); }},
      {"ge", [](const Values& x) { return compared(x[0] >= x[1], x[0]); }},
      {"eq", [](const Values& x) { return compared(x[0] == x[1], x[0]); }},
      {"where", [](const Values& x) { return at::where(x[0] != 0, x[1], x[2]); }},
  };
  const auto found = functions.find(op);
  TORCH_INTERNAL_ASSERT(found != functions.end(), "a formula's program has no operation ", op);
  return found->second(x);
}

}  // namespace

FormulaProgram::FormulaProgram(const std::string& text) {
  std::istringstream all(text);
  for (std::string one; std::getline(all, one);) {
    std::istringstream words(one);
    Line line;
    words >> line.op;
    if (line.op == "const") {
      std::string number;  // streams cannot read every number that Python writes
      words >> number;
      line.number = std::strtod(number.c_str(), nullptr);  // stod refuses subnormal numbers
    } else {
      for (size_t value = 0; words >> value;) line.args.push_back(value);
    }
    if (line.op == "out") {
      results_ = line.args;
    } else {
      lines_.push_back(line);
    }
  }
}

Values FormulaProgram::operator()(const Values& inputs) const {
  Values values = inputs;
  for (const Line& line : lines_) {
    if (line.op == "const") {
      const Tensor exact = at::scalar_tensor(line.number, inputs[0].options().dtype(at::kDouble));
      values.push_back(exact.to(inputs[0].scalar_type()));  // the result may be infinite
      continue;
    }
    Values args;
    for (const size_t at : line.args) args.push_back(values[at]);
    values.push_back(compute(line.op, args));
  }
  Values results;
  for (const size_t at : results_) {
    // A result that is a number has no dimensions, so it is expanded.
    const Tensor& found = values[at];
    results.push_back(found.dim() == 0 && inputs[0].dim() > 0 ? found.expand_as(inputs[0]) : found);
  }
  return results;
}

const FormulaEvaluators& formula_evaluators(CellKind cell) {
  static std::map<CellKind, std::unique_ptr<FormulaEvaluators>> known;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& found = known[cell];
  if (!found) {
    const FormulaPrograms& texts = formula_programs(cell);
    found = std::make_unique<FormulaEvaluators>(FormulaEvaluators{
        FormulaProgram(texts.forward), FormulaProgram(texts.backward),
        FormulaProgram(texts.forward_tangent), FormulaProgram(texts.backward_tangent)});
  }
  return *found;
}

namespace {

// The inputs of a program. `values` contains the inputs. `both` contains the inputs and, if any
// input has a tangent, then all tangents. Missing inputs and tangents are zeros.
struct Inputs {
  Values values, both;
  bool any = false;

  // `others` are the inputs besides the gates, each with its number of blocks of H columns.
  Inputs(const Gates& gates, const std::vector<std::pair<const Dual*, int>>& others) {
    std::vector<Dual> all = gates;
    for (const auto& [dual, count] : others) {
      for (const Dual& part : parts_of(*dual, count)) all.push_back(part);
    }
    const Tensor& like = gates[0].value;
    const auto or_zeros = [&](const Tensor& t) { return t.defined() ? t : at::zeros_like(like); };
    for (const Dual& one : all) {
      values.push_back(or_zeros(one.value));
      any |= one.tangent.defined();
    }
    both = values;
    if (any) {
      for (const Dual& one : all) both.push_back(or_zeros(one.tangent));
    }
  }

  static std::vector<Dual> parts_of(const Dual& t, int count) {
    if (count == 1) return {t};
    std::vector<Dual> found(count);
    for (const auto member : {&Dual::value, &Dual::tangent}) {
      if (!(t.*member).defined()) continue;
      const auto width = (t.*member).sym_size(-1) / count;
      for (int k = 0; k < count; ++k) {
        found[k].*member = (t.*member).narrow_symint(-1, width * k, width);
      }
    }
    return found;
  }
};

std::vector<Dual> evaluated(const Inputs& inputs, const FormulaProgram& value,
                            const FormulaProgram& tangent) {
  const Values values = value(inputs.values);
  const Values tangents = inputs.any ? tangent(inputs.both) : Values(values.size());
  std::vector<Dual> found;
  for (size_t i = 0; i < values.size(); ++i) found.push_back({values[i], tangents[i]});
  return found;
}

// The results from index `first` on, side by side.
Dual beside(const std::vector<Dual>& results, size_t first) {
  if (first + 1 == results.size()) return results[first];
  Values values, tangents;
  for (size_t k = first; k < results.size(); ++k) {
    values.push_back(results[k].value);
    if (results[k].tangent.defined()) tangents.push_back(results[k].tangent);
  }
  return {at::cat(values, -1), tangents.empty() ? Tensor() : at::cat(tangents, -1)};
}

}  // namespace

const CellFormula& formula_of(CellKind cell) {
  static std::map<CellKind, CellFormula> known;
  static std::mutex mutex;
  const FormulaEvaluators& own = formula_evaluators(cell);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(cell);
  if (found != known.end()) return found->second;
  const CellInfo& info = cell_info(cell);
  const auto forward = [&own, parts = info.c_parts](const Gates& gates,
                                                    const Dual& old_c) -> CellStates {
    const auto found = evaluated({gates, {{&old_c, parts}}}, own.forward, own.forward_tangent);
    return {found[0], beside(found, 1)};
  };
  const auto backward = [&own, parts = info.c_parts](const Gates& gates, const Dual& old_c,
                                                     const Dual& grad_h,
                                                     const Dual& grad_c) -> CellGrads {
    auto found = evaluated({gates, {{&old_c, parts}, {&grad_h, 1}, {&grad_c, parts}}}, own.backward,
                           own.backward_tangent);
    const Dual of_c = beside(found, gates.size());
    found.resize(gates.size());
    return {found, of_c};
  };
  return known.emplace(cell, CellFormula{forward, backward}).first->second;
}

}  // namespace treadle
