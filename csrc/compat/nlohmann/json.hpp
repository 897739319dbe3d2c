// A stub of nlohmann/json.hpp, which ATen/functorch/Interpreter.h includes although torch's wheels
// do not ship it. The stub only has to compile: our code calls none of its functions. This folder
// is searched last (-idirafter), so that a real copy of the library takes precedence.
#pragma once

#include <string>

namespace nlohmann {

class json {
 public:
  json() = default;
  template <typename Value>
  explicit json(const Value& value);

  static json parse(const std::string& text);
  std::string dump() const;
  template <typename Value>
  Value get() const;
};

}  // namespace nlohmann
