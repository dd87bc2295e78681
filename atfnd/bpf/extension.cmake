# SPDX-License-Identifier: GPL-2.0-or-later
# clang -target bpf -> bpftool skeleton -> abi3 modules over libbpf: the product's, and that of benches.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(PkgConfig REQUIRED)
pkg_check_modules(LIBBPF REQUIRED IMPORTED_TARGET libbpf>=1.1)
find_program(CLANG clang REQUIRED)
# Ubuntu's /usr/sbin/bpftool runs only beside the kernel that it came with; what it would run is below linux-tools.
file(GLOB LINUX_TOOLS /usr/lib/linux-tools/*)
find_program(BPFTOOL bpftool HINTS ${LINUX_TOOLS} PATHS /usr/sbin REQUIRED)
option(SANITIZE "with AddressSanitizer and UndefinedBehaviorSanitizer" OFF)
set(BPF_DIR ${CMAKE_CURRENT_LIST_DIR})
set(EXTENSION_DIR ${BPF_DIR}/extension) # C that both modules are built of

# skeletons(RESULT folder name...): the headers that bpftool makes of folder/name.bpf.c.
function(skeletons result folder)
  foreach(name ${ARGN})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.bpf.o)
    set(skeleton ${CMAKE_CURRENT_BINARY_DIR}/${name}.skel.h)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CLANG} -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror
              -I${BPF_DIR}/shared -I${BPF_DIR}/programs -idirafter /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}
              -MD -MF ${object}.d -c ${folder}/${name}.bpf.c -o ${object}
      DEPENDS ${folder}/${name}.bpf.c
      DEPFILE ${object}.d)
    add_custom_command(
      OUTPUT ${skeleton}
      COMMAND ${BPFTOOL} gen skeleton ${object} name ${name} > ${skeleton}
      DEPENDS ${object})
    list(APPEND made ${skeleton})
  endforeach()
  set(${result} ${made} PARENT_SCOPE)
endfunction()

# extension(name source...). USE_SABI needs CMake 3.26; Debian 12 has 3.25, so the limited API is set by hand.
function(extension name)
  Python_add_library(${name} MODULE ${ARGN})
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".abi3.so" C_STANDARD 11)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Werror -O2 -fvisibility=hidden)
  target_compile_definitions(${name} PRIVATE Py_LIMITED_API=0x030B0000)
  target_include_directories(${name} PRIVATE ${EXTENSION_DIR} ${BPF_DIR}/shared)
  target_include_directories(${name} SYSTEM PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
  target_link_libraries(${name} PRIVATE PkgConfig::LIBBPF)
  if(SANITIZE)
    set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g)
    target_compile_options(${name} PRIVATE ${sanitizers})
    target_link_options(${name} PRIVATE ${sanitizers})
  endif()
endfunction()
