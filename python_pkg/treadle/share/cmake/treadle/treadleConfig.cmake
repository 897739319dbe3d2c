# find_package(treadle): treadle's ops for C++ programs. CMAKE_PREFIX_PATH comes from
# `python -m treadle --cmake-prefix`, which prints treadle's folder and torch's.
#
#   treadle::treadle   link this; it includes treadle::torch
#   treadle::torch     LibTorch, from the torch package of that Python
#   treadle::kernels   the C functions of treadle/kernels.h, which need no torch:
#                      find_package(treadle COMPONENTS kernels) does not look for torch
#
# TorchConfig.cmake is not used, because with CUDA it stops if no CUDA toolkit is installed. Neither
# linking nor running needs one. Set TREADLE_TORCH_DIR to use another torch folder.

if(CMAKE_VERSION VERSION_LESS 3.19)
  message(FATAL_ERROR "treadle needs CMake 3.19 or newer, this is ${CMAKE_VERSION}")
endif()

get_filename_component(_treadle "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
file(GLOB _builds "${_treadle}/lib/torch-*/facts.json")
if(NOT _builds OR NOT EXISTS "${_treadle}/lib/libtreadle_kernels.so")
  set(treadle_FOUND FALSE)
  set(treadle_NOT_FOUND_MESSAGE "treadle has not been built: ${_treadle} holds no compiled library")
  return()
endif()

# The headers are in the package, or next to it in the repository.
foreach(_header ops kernels)
  find_path(_${_header} treadle/${_header}.h NO_CACHE NO_DEFAULT_PATH
    PATHS "${_treadle}/include" "${_treadle}/../../csrc/include" "${_treadle}/../../kernels/include")
  if(NOT _${_header})
    set(treadle_FOUND FALSE)
    set(treadle_NOT_FOUND_MESSAGE "${_treadle} holds no include/treadle/${_header}.h")
    return()
  endif()
endforeach()

if(NOT TARGET treadle::kernels)
  add_library(treadle::kernels SHARED IMPORTED)
  set_target_properties(treadle::kernels PROPERTIES
    IMPORTED_LOCATION "${_treadle}/lib/libtreadle_kernels.so"
    IMPORTED_SONAME libtreadle_kernels.so
    INTERFACE_INCLUDE_DIRECTORIES "${_kernels}")
endif()
if(treadle_FIND_COMPONENTS STREQUAL "kernels" OR TARGET treadle::treadle)
  return()
endif()

find_path(TREADLE_TORCH_DIR include/torch/headeronly/version.h
  HINTS "${_treadle}/../torch" ${CMAKE_PREFIX_PATH} DOC "Folder of the torch package")
if(NOT TREADLE_TORCH_DIR)
  set(treadle_FOUND FALSE)
  set(treadle_NOT_FOUND_MESSAGE
    "no torch package was found: set TREADLE_TORCH_DIR, or pass all of `python -m treadle --cmake-prefix`")
  return()
endif()

# A library works only with the minor version of torch that it was built for.
file(STRINGS "${TREADLE_TORCH_DIR}/include/torch/headeronly/version.h" _lines REGEX "TORCH_VERSION_M(AJOR|INOR) ")
string(REGEX MATCHALL "[0-9]+" _found "${_lines}")
list(JOIN _found "." _found)
set(_build "${_treadle}/lib/torch-${_found}")
if(EXISTS "${_build}-cpu" AND NOT EXISTS "${TREADLE_TORCH_DIR}/lib/libtorch_cuda.so")
  set(_build "${_build}-cpu")
endif()
if(NOT EXISTS "${_build}/libtreadle.so")
  string(REGEX MATCHALL "torch-[0-9.]+" _builds "${_builds}")
  list(REMOVE_DUPLICATES _builds)
  list(JOIN _builds ", " _builds)
  message(FATAL_ERROR
    "treadle holds builds for ${_builds}, and ${TREADLE_TORCH_DIR} is torch ${_found}: "
    "rebuild treadle for that torch (python -m treadle names the command)")
endif()
file(READ "${_build}/facts.json" _facts)
foreach(_key version torch cuda cxx_standard cxx11_abi)
  string(JSON _fact_${_key} GET "${_facts}" ${_key})
endforeach()
set(treadle_VERSION "${_fact_version}")

set(_libraries c10 torch_cpu torch)
if(_fact_cuda)
  list(APPEND _libraries c10_cuda torch_cuda)
endif()
list(TRANSFORM _libraries REPLACE "(.+)" "${TREADLE_TORCH_DIR}/lib/lib\\1.so")
if(_fact_cuda)
  # pip installs the CUDA runtime next to torch. Other torch packages contain it or use that of the
  # system.
  string(REGEX MATCH "^[0-9]+" _major "${_fact_cuda}")
  file(GLOB _cudart "${TREADLE_TORCH_DIR}/../nvidia/cu*/lib/libcudart.so.${_major}"
    "${TREADLE_TORCH_DIR}/lib/libcudart*.so*")
  if(NOT _cudart)
    find_library(_cudart NAMES cudart NO_CACHE
      HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES lib64 lib)
  endif()
  list(GET _cudart 0 _cudart)
  list(APPEND _libraries "${_cudart}")
endif()

if(_fact_cxx11_abi)
  set(_abi 1)
else()
  set(_abi 0)
endif()

add_library(treadle::torch INTERFACE IMPORTED)
set_target_properties(treadle::torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES
    "${TREADLE_TORCH_DIR}/include;${TREADLE_TORCH_DIR}/include/torch/csrc/api/include"
  INTERFACE_COMPILE_FEATURES cxx_std_${_fact_cxx_standard}
  INTERFACE_COMPILE_DEFINITIONS _GLIBCXX_USE_CXX11_ABI=${_abi}
  # Backends and ops register themselves when they are loaded, so the libraries must be linked even
  # if none of their symbols is used.
  INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed"
  INTERFACE_LINK_LIBRARIES "${_libraries}")

add_library(treadle::treadle SHARED IMPORTED)
set_target_properties(treadle::treadle PROPERTIES
  IMPORTED_LOCATION "${_build}/libtreadle.so"
  IMPORTED_SONAME libtreadle.so
  # libtreadle.so itself loads this library from the folder above its own.
  IMPORTED_LINK_DEPENDENT_LIBRARIES treadle::kernels
  INTERFACE_INCLUDE_DIRECTORIES "${_ops}"
  INTERFACE_LINK_LIBRARIES treadle::torch)
