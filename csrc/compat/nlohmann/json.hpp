// A stand-in for nlohmann/json.hpp: ATen/functorch/Interpreter.h includes it, and torch's wheels do
// not ship it. It only has to parse: nothing of it is called from our files. The folder is searched
// last (-idirafter), so that a real copy of the library wins.
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
