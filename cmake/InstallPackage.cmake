# Installation and the CMake package; filled in when the library's modules are complete.
