-- Fixes the commits of a job's datasets when it is submitted, and refuses what cannot be mounted.
-- For /etc/slurm/cli_filter.lua of submit hosts, with CliFilterPlugins=lua in slurm.conf. A site that
-- has a filter already loads this file with dofile() and calls lodefs_pre_submit from its own.
--
-- Of an option --lodefs, else of "lodefs=REPO@REV:DIR" in the comment. The result is the comment.

local PROGRAM = os.getenv("LODEFS_PROGRAM") or "/usr/bin/lodefs"
local FAULT = 1
local ERROR_BYTES_MAX = 4096

local function quoted(words)
  return "'" .. words:gsub("'", "'\\''") .. "'"
end

local function asked_by_option(options)
  local spank = options["spank"]
  local plugin = spank and spank["lodefs"]
  local asked = plugin and plugin["lodefs"] or nil
  return asked == "set" and "" or asked -- so Slurm passes on an option without a value
end

function lodefs_pre_submit(options)
  local asked = asked_by_option(options)
  local comment = options["comment"] or ""
  if os.getenv("SLURM_JOB_ID") then
    return slurm.SUCCESS -- a step: its job has the datasets
  end
  if not asked and not (" " .. comment):find("%slodefs=") then
    return slurm.SUCCESS
  end
  local command = PROGRAM .. " slurm resolve --comment " .. quoted(comment)
  if asked then
    command = command .. " -- " .. quoted(asked)
  end
  local pipe = io.popen(command .. " 2>&1 </dev/null; echo $?")
  local said = pipe and pipe:read("*a") or ""
  if pipe then
    pipe:close()
  end
  local code = said:match("(%d+)\n$", -5) or ""
  local text = said:sub(1, -#code - 2):gsub("\n$", "")
  if code ~= "0" then
    text = text:sub(1, ERROR_BYTES_MAX)
    slurm.log_error("%s", text ~= "" and text or "lodefs: error: it cannot be started")
    return FAULT
  end
  options["comment"] = text
  return slurm.SUCCESS
end

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
  return lodefs_pre_submit(options)
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
