# Checks whether this version satisfies a call such as find_package(treadle 0.1). Until 1.0, a minor
# version may change an interface; afterwards, only a major one may.

file(GLOB _builds "${CMAKE_CURRENT_LIST_DIR}/../../../lib/torch-*/facts.json")
if(NOT _builds OR CMAKE_VERSION VERSION_LESS 3.19)
  # treadleConfig.cmake reports what is wrong.
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  return()
endif()

list(GET _builds 0 _facts)
file(READ "${_facts}" _facts)
string(JSON PACKAGE_VERSION GET "${_facts}" version)

if(PACKAGE_FIND_VERSION_RANGE)
  set(_oldest "${PACKAGE_FIND_VERSION_MIN}")
  if(PACKAGE_FIND_VERSION_RANGE_MAX STREQUAL "INCLUDE" AND
     PACKAGE_VERSION VERSION_GREATER PACKAGE_FIND_VERSION_MAX)
    set(PACKAGE_VERSION_UNSUITABLE TRUE)
  elseif(PACKAGE_FIND_VERSION_RANGE_MAX STREQUAL "EXCLUDE" AND
         PACKAGE_VERSION VERSION_GREATER_EQUAL PACKAGE_FIND_VERSION_MAX)
    set(PACKAGE_VERSION_UNSUITABLE TRUE)
  endif()
else()
  set(_oldest "${PACKAGE_FIND_VERSION}")
  # The leading part of the requested version that must match: 0.1 of 0.1.3, 1 of 1.2.3.
  string(REGEX MATCH "^(0\\.[0-9]+|[0-9]+)" _asked "${_oldest}")
  string(REGEX MATCH "^(0\\.[0-9]+|[0-9]+)" _has "${PACKAGE_VERSION}")
  if(_oldest AND NOT _asked STREQUAL _has AND NOT _oldest STREQUAL "0")
    set(PACKAGE_VERSION_UNSUITABLE TRUE)
  endif()
endif()

if(_oldest AND PACKAGE_VERSION VERSION_LESS _oldest)
  set(PACKAGE_VERSION_UNSUITABLE TRUE)
endif()
if(NOT PACKAGE_VERSION_UNSUITABLE)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(_oldest AND PACKAGE_VERSION VERSION_EQUAL _oldest AND NOT PACKAGE_FIND_VERSION_RANGE)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
