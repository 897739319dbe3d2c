// Between info.cpp and the backend that launches (cuda/launch.cpp, or cuda_missing.cpp).
#pragma once

#include <string>

#include "treadle/info.h"

namespace treadle {

void add_launch(Launch launch);

std::string cuda_version();  // that of the toolkit, "none" in a CPU-only build

}  // namespace treadle
