// Before anything is drawn: light or dark as it was chosen here, else as the system has it.
"use strict";
try {
  document.documentElement.style.colorScheme = localStorage.getItem("theme") ?? "";
} catch { /* no storage: as the system has it */ }
