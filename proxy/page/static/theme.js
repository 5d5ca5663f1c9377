// Before anything is painted: the theme that was chosen here, if one was.
"use strict";
try {
  const chosen = localStorage.getItem("lodefs-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that stores nothing follows the system.
}
