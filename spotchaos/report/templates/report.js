"use strict";
(function () {
  var root = document.documentElement;
  var trials = Array.prototype.slice.call(document.querySelectorAll("details.trial"));
  var rows = Array.prototype.slice.call(document.querySelectorAll("#trial-table tbody tr"));
  var wanted = "all";
  var words = "";
  root.classList.add("scripted");

  function show() {
    function fits(item) {
      var verdict = wanted === "all" || item.dataset.verdict === wanted;
      return verdict && item.textContent.toLowerCase().indexOf(words) !== -1;
    }
    rows.forEach(function (row) { row.hidden = !fits(row); });
    trials.forEach(function (trial) { trial.hidden = !fits(trial); });
  }

  document.querySelectorAll("[data-filter]").forEach(function (button) {
    button.addEventListener("click", function () {
      wanted = button.dataset.filter;
      document.querySelectorAll("[data-filter]").forEach(function (other) {
        other.setAttribute("aria-pressed", String(other === button));
      });
      show();
    });
  });
  var search = document.getElementById("words");
  if (search) {
    search.addEventListener("input", function () {
      words = search.value.toLowerCase();
      show();
    });
  }

  document.querySelectorAll("#trial-table th button").forEach(function (button) {
    button.addEventListener("click", function () {
      var head = button.parentNode;
      var column = Array.prototype.indexOf.call(head.parentNode.children, head);
      var up = head.getAttribute("aria-sort") !== "ascending";
      document.querySelectorAll("#trial-table th").forEach(function (other) {
        other.removeAttribute("aria-sort");
      });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      rows.sort(function (a, b) {
        var x = a.children[column].textContent, y = b.children[column].textContent;
        return (up ? 1 : -1) * x.localeCompare(y, undefined, { numeric: true });
      });
      rows.forEach(function (row) { row.parentNode.appendChild(row); });
    });
  });

  function open() {
    var target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); }
  }
  window.addEventListener("hashchange", open);
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (item) { item.open = true; });
  });
  open();
})();
