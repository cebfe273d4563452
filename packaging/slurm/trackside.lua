-- Module file for Lmod: gives users the command trackside. See docs/slurm.md. Install it as trackside/VERSION.lua in a
-- folder of MODULEPATH, and set prefix to the environment in which Trackside is installed.
local prefix = "/sw/trackside/0.1.0"

help([[
Trackside says why a GPU training run failed or ran slowly, from its logs, metrics and scheduler records:

    trackside diagnose slurm-123.out
    trackside diagnose --job 123        (where the site's settings name its servers)
]])
whatis("Name: Trackside")
whatis("Description: a cited verdict on why a GPU training run ended as it did")

-- A folder with a link to the command alone: the environment's own Python must not hide the user's.
prepend_path("PATH", pathJoin(prefix, "commands"))
local settings = "/etc/trackside/trackside.toml"
if isFile(settings) then
    setenv("TRACKSIDE_CONFIG", settings)
end
