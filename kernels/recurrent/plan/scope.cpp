// Prints plans for TREADLE_PRINT_PLANS=1.
#include "kernels/recurrent/plan/scope.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

namespace treadle {
namespace {

bool plans_are_printed() {
  const char* const asked = std::getenv("TREADLE_PRINT_PLANS");
  return asked != nullptr && std::string_view(asked) == "1";
}

std::string describe(const RecurrenceSizes& sizes, bool backward, const RecurrencePlan& plan) {
  std::ostringstream text;
  text << cell_info(sizes.cell).name << (backward ? " backward, " : " forward, ")
       << dtype_name(sizes.dtype) << ", T " << sizes.steps << ", B " << sizes.batch << ", H "
       << sizes.hidden << ", D " << sizes.directions << (sizes.packed ? ", packed" : "")
       << (sizes.resets ? ", resets" : "") << ": " << plan.kernel_name();
  const auto& [units, blocks, tiles] = plan.shape;
  if (units > 0) text << " {" << units << ", " << blocks << ", " << tiles << "}";
  if (plan.rows > 0) text << ", " << plan.rows << " rows";
  if (plan.grid()) text << ", " << plan.groups << " groups";
  const int64_t at_once = plan.directions_at_once(sizes.directions);
  if (at_once < sizes.directions) text << ", " << at_once << " directions at once";
  text << " (" << plan.reason << ")";
  return text.str();
}

}  // namespace

void print_plan(const RecurrenceSizes& sizes, bool backward, const RecurrencePlan& plan) {
  static const bool prints = plans_are_printed();
  if (!prints) return;
  std::fprintf(stderr, "treadle: %s\n", describe(sizes, backward, plan).c_str());
}

}  // namespace treadle
